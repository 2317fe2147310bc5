"""Identity: which database this is. Numbers such as queue_key are those of one database.

Behind the same address there may be another one some day: dropped and made again, renamed, or restored.
"""

from typing import NamedTuple

from sqlalchemy import Connection, func, select


class Identity(NamedTuple):
    """What tells a database from all others, a restored copy of it included."""

    system_identifier: int
    database_oid: int


def find(connection: Connection) -> Identity:
    """The identity of the database that a connection leads to."""
    identity = func.mqdb.identity().table_valued(*Identity._fields)
    return Identity(*connection.execute(select(*identity.c)).one())
