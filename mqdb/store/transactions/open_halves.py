"""Open half messages: those that have not ended, and those that were given up.

There are few of both kinds, and each kind has an index.
"""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, Float, cast, extract, func, literal_column, select

from mqdb.common.transaction import HalfState
from mqdb.store.engine import translates
from mqdb.store.tables import half_message
from mqdb.store.transactions.half_messages import PREPARED, hm


class OpenHalves(NamedTuple):
    """The number of open half messages.

    Half messages too young for a check do not count, because most will soon end.
    """

    prepared: int
    discarded: int
    oldest_seconds: float
    """The age of the first prepared half message; 0 without one."""


def count(connection: Connection) -> OpenHalves:
    """Count the open half messages.

    Uses the indexes half_message_check_at and half_message_discarded, so it does not read half messages that have
    ended.
    """
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
    """The given producer groups that have open half messages about which no client is being asked.

    Uses half_message_check_at.
    """
    of_groups = hm.producer_group.in_(groups), hm.check_client.is_(None)
    return set(connection.scalars(select(hm.producer_group).where(PREPARED, *of_groups).distinct()))
