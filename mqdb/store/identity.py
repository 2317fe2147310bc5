"""Identity: which database this is. Numbers such as queue_key are those of one database.

Behind the same address there may be another one some day: dropped and made again, renamed, or restored.
"""

from typing import NamedTuple

from sqlalchemy import Connection, func, select

from mqdb.store.history import History


class Identity(NamedTuple):
    """What tells a database from all others, a restored copy of it included."""

    system_identifier: int
    database_oid: int


def find(connection: Connection) -> tuple[Identity, History]:
    """The identity of the database that a connection leads to, and the history of its log."""
    identity = func.mqdb.identity().table_valued(*Identity._fields)
    *found, history = connection.execute(select(*identity.c, func.mqdb.history())).one()
    return Identity(*found), history
