"""From settings to a connection: to the database that they name, or to the embedded one that runs in the home."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mqdb.errors import BrokerMisnamed, BrokerUnavailable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from mqdb.dsn import BrokerDsn
    from mqdb.settings import Settings


def broker_of(settings: "Settings") -> "BrokerDsn":
    """The one broker that the settings name, with its password.

    Raises BrokerUnavailable when it is the embedded one and nothing runs in the home, NotSupported for several.
    """
    broker = settings.broker
    if broker is not None:
        return broker
    from mqdb.dsn import BrokerDsn
    from mqdb.embedded import attach

    running = attach(settings.home)
    if running is None:
        raise BrokerUnavailable(
            str(settings.home), "no broker runs in this home; start one with `mqdb serve`, or set MQDB_DSN"
        )
    return BrokerDsn(settings.broker_name, running.dsn)


@contextmanager
def connected(settings: "Settings") -> "Iterator[Connection]":
    """A connection to the broker, in AUTOCOMMIT. Raises a SchemaMismatch unless its schema is the one of this mqdb."""
    from mqdb.broker.query import broker_info
    from mqdb.dsn import redact
    from mqdb.store.engine import create_engine, translated
    from mqdb.store.migrations import check_schema

    broker = broker_of(settings)
    target = redact(broker.dsn)
    engine = create_engine(broker.dsn, application_name="mqdb command line", pool_size=1)
    try:
        with translated(target), engine.connect() as connection:
            check_schema(connection)
            info = broker_info(connection)
            if broker.name != info.broker_name:
                raise BrokerMisnamed(target, broker.name, info.broker_name)
            yield connection
    finally:
        engine.dispose()
