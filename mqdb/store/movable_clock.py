"""The broker's clock, which tests of mqdb, and of programs that use mqdb, can move in their own database."""

from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

#: Clients take the broker's time only from these functions. Only the owner of the schema may replace them.
_CLOCKS: Final = {
    "now": "VOLATILE PARALLEL SAFE RETURN clock_timestamp()",
    "transaction_began": "STABLE PARALLEL SAFE RETURN transaction_timestamp()",
    "statement_began": "STABLE PARALLEL SAFE RETURN statement_timestamp()",
}


def make_clock_movable(connection: Connection) -> None:
    """Mark a database as a test database, in which `SET mqdb.clock_offset = '1 hour'` moves a session's broker clock.

    From then on every role that can connect may do this. Only the owner of the schema may do this.
    """
    _replace_clocks(connection, "coalesce(nullif(current_setting('mqdb.clock_offset', true), ''), '0')::interval")


def set_clock_ahead(connection: Connection, ahead: timedelta) -> None:
    """Set the broker's clock ahead by this much, in all sessions at once. Only the owner of the schema may do this."""
    _replace_clocks(connection, f"interval '{ahead // timedelta(microseconds=1)} microseconds'")
    # Services may sleep until something is due by the old clock.
    connection.exec_driver_sql("NOTIFY mqdb_wake")


def _replace_clocks(connection: Connection, ahead: str) -> None:
    for name, clock in _CLOCKS.items():
        connection.exec_driver_sql(
            f"CREATE OR REPLACE FUNCTION mqdb.{name}() RETURNS timestamptz LANGUAGE sql {clock} + {ahead}"
        )
