"""What tests of mqdb, and tests of programs that use it, may change in a database of their own."""

from datetime import timedelta

from sqlalchemy import Connection

#: Clients take the time of the broker from mqdb.now() alone. Only the owner of the schema may replace it.
_MOVABLE_CLOCK = """
CREATE OR REPLACE FUNCTION mqdb.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock_timestamp() + coalesce(nullif(current_setting('mqdb.clock_offset', true), ''), '0')::interval
"""


def make_clock_movable(connection: Connection) -> None:
    """Mark a database as one for tests: `SET mqdb.clock_offset = '1 hour'` moves the broker's clock for a session.

    From then on every role that can connect may do so. Needs the owner of the schema.
    """
    connection.exec_driver_sql(_MOVABLE_CLOCK)


def set_clock_ahead(connection: Connection, ahead: timedelta) -> None:
    """Let the broker's clock be so far ahead, in all sessions at once. Needs the owner of the schema."""
    connection.exec_driver_sql(
        f"""CREATE OR REPLACE FUNCTION mqdb.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
            RETURN clock_timestamp() + interval '{ahead // timedelta(microseconds=1)} microseconds'"""
    )
