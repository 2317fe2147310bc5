"""The properties of records: TAGS, KEYS and UNIQ_KEY have columns, and are not stored twice."""

from typing import Any

from sqlalchemy import ColumnElement, FromClause, LargeBinary, Text, and_, case, cast, func, literal, or_
from sqlalchemy.dialects.postgresql import JSONB

from mqdb.common.kafka_record import NO_VALUE, KafkaProperty, MissingValue
from mqdb.common.property import Property


def all_properties(record: FromClause) -> ColumnElement[Any]:
    """All properties of a record as jsonb. This costs more than reading `properties`."""
    columns = (record.c[name] for name in ("properties", "tags", "keys", "msg_id"))
    return func.mqdb.all_properties(*columns, type_=JSONB())


def of_columns(record: FromClause) -> dict[str, ColumnElement[Any]]:
    """The properties that have columns of their own, by name, for a selector."""
    return {
        Property.TAGS.value: record.c.tags,
        Property.KEYS.value: record.c["keys"],
        Property.UNIQ_KEY.value: func.mqdb.unique_id_text(record.c.msg_id, type_=Text()),
    }


def kafka_property(record: FromClause, name: KafkaProperty) -> ColumnElement[Any]:
    """The value that a record keeps of a Kafka record under this name; NULL without a value."""
    return cast(record.c.properties.op("->>")(literal(name.value, Text)), Text)


def value_of(record: FromClause) -> ColumnElement[Any]:
    """The body of a record as stored; NULL for a Kafka tombstone, and empty for an empty Kafka value."""
    missing = kafka_property(record, KafkaProperty.VALUE)
    is_null, is_empty = (missing == literal(each.value, Text) for each in (MissingValue.NULL, MissingValue.EMPTY))
    # The first comparison does not fetch long bodies, because their length differs.
    is_missing = and_(record.c.body == literal(NO_VALUE, LargeBinary), or_(is_null, is_empty))
    return case((is_missing, case((is_empty, literal(b"", LargeBinary)))), else_=record.c.body)
