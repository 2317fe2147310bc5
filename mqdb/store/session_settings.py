"""Settings that each session of mqdb has, whatever its role, its database or its DSN say.

With other settings, PostgreSQL sends values in forms that the driver cannot read, and statements mean something else.
This module imports nothing of mqdb, so that workers of Spark start quickly.
"""

from collections.abc import Mapping
from typing import Final

SESSION_SETTINGS: Final[Mapping[str, str]] = {
    # Names of mqdb are written in full: no function in another schema is called in place of PostgreSQL's own.
    "search_path": "pg_catalog",
    # Dispatch refuses another one, and a standby refuses `serializable`.
    "default_transaction_isolation": "read committed",
    # psycopg reads times and intervals in no other style.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    # PostgreSQL has zones that Python does not know; psycopg warns of them.
    "TimeZone": "UTC",
    # With less, floating-point numbers lose digits.
    "extra_float_digits": "1",
    # Otherwise a backslash in a literal escapes, and NULL in the text of an array is a text.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    # PostgreSQL's own texts of policies, which new segments copy, then have no quotes.
    "quote_all_identifiers": "off",
    # Otherwise statements of a role that does not own the broker fail.
    "row_security": "on",
    # Expected errors must not end the session.
    "exit_on_error": "off",
}

#: Commits of mqdb's own work wait for the disk, and for no standby. The server's `off` stays. Not at the start of a
#: session: `options` would replace an `off` that the role or the database was given.
COMMIT_LOCALLY: Final = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'off'"
    " ELSE 'local' END, false)"
)


def startup_options(*settings: Mapping[str, str]) -> str:
    """These settings for libpq's `options`, after what a DSN says there: the last setting of a name counts."""
    return " ".join(f"-c {name}={_escaped(value)}" for each in settings for name, value in each.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
