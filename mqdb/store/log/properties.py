"""The properties of records: TAGS, KEYS and UNIQ_KEY have columns, and are not stored twice."""

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Text, func
from sqlalchemy.dialects.postgresql import JSONB

from mqdb.common.property import Property


def all_properties(record: FromClause) -> ColumnElement[Any]:
    """All properties of a record as jsonb. It costs more than to read `properties`."""
    columns = (record.c[name] for name in ("properties", "tags", "keys", "msg_id"))
    return func.mqdb.all_properties(*columns, type_=JSONB())


def of_columns(record: FromClause) -> dict[str, ColumnElement[Any]]:
    """Those with columns, by their names, for a selector."""
    return {
        Property.TAGS.value: record.c.tags,
        Property.KEYS.value: record.c["keys"],
        Property.UNIQ_KEY.value: func.mqdb.unique_id_text(record.c.msg_id, type_=Text()),
    }
