"""Settings that each session of mqdb has, regardless of its role, its database or its DSN.

With other settings, PostgreSQL sends values in forms that the driver cannot read, and statements have other meanings.
This module imports nothing from mqdb, so that Spark's workers start quickly.
"""

from collections.abc import Mapping
from typing import Final

SESSION_SETTINGS: Final[Mapping[str, str]] = {
    # mqdb's names are qualified: no function in another schema replaces PostgreSQL's own.
    "search_path": "pg_catalog",
    # Dispatch refuses other isolation levels, and a standby refuses `serializable`.
    "default_transaction_isolation": "read committed",
    # psycopg cannot read times and intervals in other styles.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    # PostgreSQL has zones that Python does not know; psycopg warns about them.
    "TimeZone": "UTC",
    # With less, floating-point numbers lose digits.
    "extra_float_digits": "1",
    # Otherwise a backslash in a literal is an escape, and NULL in the text of an array is a string.
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

#: Commits of mqdb's own work wait for the disk but not for standbys. The server's `off` is kept. It is not set at the
#: start of a session, where `options` would override an `off` of the role or the database.
COMMIT_LOCALLY: Final = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'off'"
    " ELSE 'local' END, false)"
)


def startup_options(*settings: Mapping[str, str]) -> str:
    """These settings for libpq's `options`, after those of a DSN, because the last setting of a name applies."""
    return " ".join(f"-c {name}={_escaped(value)}" for each in settings for name, value in each.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
