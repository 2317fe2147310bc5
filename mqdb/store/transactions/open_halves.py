"""Half messages that are open: those without an end, and those that were given up. Both are few, and have an index."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, Float, cast, extract, func, literal_column, select

from mqdb.common.transaction import HalfState
from mqdb.store.engine import translates
from mqdb.store.tables import half_message
from mqdb.store.transactions.half_messages import PREPARED, hm


class OpenHalves(NamedTuple):
    """Number of open half messages. Those too young for a check do not count: most will end by themselves."""

    prepared: int
    discarded: int
    oldest_seconds: float
    """Age of the first one that is prepared; 0 without one."""


def count(connection: Connection) -> OpenHalves:
    """Uses half_message_check_at and half_message_discarded, and reads none that have ended."""
    discarded = hm.state == literal_column(f"'{HalfState.DISCARDED}'::text")
    age = cast(extract("epoch", func.mqdb.now() - func.min(hm.stored_at)), Float)
    columns = (
        select(func.count()).select_from(half_message).where(PREPARED).scalar_subquery(),
        select(func.count()).select_from(half_message).where(discarded).scalar_subquery(),
        func.greatest(select(age).where(PREPARED).scalar_subquery(), 0.0),
    )
    return OpenHalves(*connection.execute(select(*columns)).one())


@translates
def unasked_groups(connection: Connection, groups: Collection[str]) -> set[str]:
    """The ones of these producer groups that have half messages without an end about which no client is asked.

    Uses half_message_check_at.
    """
    of_groups = hm.producer_group.in_(groups), hm.check_client.is_(None)
    return set(connection.scalars(select(hm.producer_group).where(PREPARED, *of_groups).distinct()))
