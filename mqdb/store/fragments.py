"""Parts that statements of several modules have in common: the id of a group, keys of queues, rows that are given."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, ScalarSelect, Text, and_, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from mqdb.store.tables import subscription_group

#: The columns that `given` makes of rows of `OwnedQueue`.
OWNED_QUEUE: Final[Mapping[str, TypeEngine[Any]]] = {
    "queue_key": Integer(),
    "epoch": BigInteger(),
    "next_offset": BigInteger(),
    "segment": Integer(),
    "history": BigInteger(),
}


def group_id(group: str | ColumnElement[str]) -> ScalarSelect[int]:
    """The id of the group of that name. Uses subscription_group_group_name_key."""
    return (
        select(subscription_group.c.group_id)
        .where(subscription_group.c.group_name == full_group(group))
        .scalar_subquery()
    )


def full_group(group: str | ColumnElement[str]) -> ColumnElement[str]:
    """The whole name of a given group. Not needed for comparing a column with a text, whose type does that."""
    return func.mqdb.full_group(group, type_=Text())


def full_topic(topic: str | ColumnElement[str]) -> ColumnElement[str]:
    """The whole name of a given topic. Not needed for comparing a column with a text, whose type does that."""
    return func.mqdb.full_topic(topic, type_=Text())


def array_of(queue_keys: Sequence[int]) -> ColumnElement[Any]:
    """Keys of queues, for `= ANY`."""
    return cast(list(queue_keys), ARRAY(Integer))


def is_ahead(time: ColumnElement[Any], length: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a time that was set `length` ahead has not passed.

    One that lies further ahead than its length was set before the clock was put back, and is not believed.
    """
    now = func.mqdb.now()
    return and_(time > now, time <= now + length)


def given(types: Mapping[str, TypeEngine[Any]], rows: Iterable[Sequence[object]]) -> TableValuedAlias:
    """Rows as a table that statements may join, with a column for each type. It may be empty."""
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [cast(list(values), ARRAY(type_)) for values, type_ in zip(columns, types.values(), strict=True)]
    return func.unnest(*arrays).table_valued(*types, name="given").render_derived("given")
