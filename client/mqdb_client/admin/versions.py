"""Versions: the revision of a broker's schema, and the version of its PostgreSQL."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from mqdb.common.dsn import BrokerDsn
from mqdb.store import migrations
from mqdb.store.engine import connected
from mqdb.store.server_choice import ServerRole


@dataclass(frozen=True)
class Versions:
    """The versions of a broker."""

    schema: str | None
    """Revision of the schema; None if the database has no schema mqdb."""
    server: str
    """Version of PostgreSQL, such as "18.1", with the name of its package if it has one."""


def known_revision() -> str:
    """The newest schema revision of this version of mqdb, without querying a broker."""
    return migrations.head()


def read_versions(connection: Connection) -> Versions:
    """The versions of the broker at the other end of a connection."""
    server = connection.scalars(select(func.current_setting("server_version"))).one()
    return Versions(migrations.current(connection), server)


def versions_of(broker: BrokerDsn) -> Versions:
    """The versions of a broker, even if this version of mqdb does not work with its schema.

    Raises BrokerUnavailable.
    """
    with connected(broker.dsn, "mqdb version", ServerRole.ANY) as connection:
        return read_versions(connection)
