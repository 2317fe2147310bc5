"""Parts shared by statements of several modules: the id of a group, queue keys, given rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, ScalarSelect, Text, and_, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from mqdb.store.tables import subscription_group

#: The columns that `given` makes from `OwnedQueue` rows.
OWNED_QUEUE: Final[Mapping[str, TypeEngine[Any]]] = {
    "queue_key": Integer(),
    "epoch": BigInteger(),
    "next_offset": BigInteger(),
    "segment": Integer(),
    "history": BigInteger(),
}


def group_id(group: str | ColumnElement[str]) -> ScalarSelect[int]:
    """The id of the group with this name. Uses subscription_group_group_name_key."""
    return (
        select(subscription_group.c.group_id)
        .where(subscription_group.c.group_name == full_group(group))
        .scalar_subquery()
    )


def full_group(group: str | ColumnElement[str]) -> ColumnElement[str]:
    """The complete name of a given group.

    Not needed to compare a column with a value: the column's type completes the value.
    """
    return func.mqdb.full_group(group, type_=Text())


def full_topic(topic: str | ColumnElement[str]) -> ColumnElement[str]:
    """The complete name of a given topic.

    Not needed to compare a column with a value: the column's type completes the value.
    """
    return func.mqdb.full_topic(topic, type_=Text())


def array_of(queue_keys: Sequence[int]) -> ColumnElement[Any]:
    """Queue keys as an array, for `= ANY`."""
    return cast(list(queue_keys), ARRAY(Integer))


def is_ahead(time: ColumnElement[Any], length: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a time that was set `length` ahead has not passed yet.

    A time further ahead than `length` was set before the clock was set back, and is not trusted.
    """
    now = func.mqdb.now()
    return and_(time > now, time <= now + length)


def given(types: Mapping[str, TypeEngine[Any]], rows: Iterable[Sequence[object]]) -> TableValuedAlias:
    """Rows as a table for joins, with one column per type. The table may be empty."""
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [cast(list(values), ARRAY(type_)) for values, type_ in zip(columns, types.values(), strict=True)]
    return func.unnest(*arrays).table_valued(*types, name="given").render_derived("given")
