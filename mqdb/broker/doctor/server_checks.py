"""Checks of the server and of its settings."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from mqdb.broker.doctor.finding import (
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    grade,
    graded,
    identifier,
    one_each,
    row,
    rows,
)
from mqdb.errors import SchemaMismatch, SchemaTooNew
from mqdb.store.engine import driver, target_of
from mqdb.store.migrations import check_schema, current, head, is_ahead

FAIL, WARN, INFO = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.INFO

#: The remedy if the server does not answer.
LOOK_AT_DSN: Final = "mqdb config"


def _connection(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    begun = time.perf_counter()
    driver(connection).execute("SELECT 1")
    took_ms = round((time.perf_counter() - begun) * 1_000, 1)
    return fine(f"{target_of(connection)} answers in {took_ms} ms", round_trip_ms=took_ms)


def _version(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    number = row(connection, "SELECT current_setting('server_version_num')::integer AS number").number
    major = number // 10_000
    seen = f"PostgreSQL {major}.{number % 10_000}"
    figures = {"server_version_num": number}
    oldest, newest = thresholds.oldest_server_major, thresholds.newest_server_major
    if major < oldest:
        return [Observation(FAIL, f"{seen}; mqdb needs {oldest}", f"upgrade PostgreSQL to {oldest} or newer", figures)]
    if major > newest:
        return [Observation(WARN, f"{seen}; this mqdb supports up to {newest}", "upgrade mqdb", figures)]
    return fine(seen, **figures)


def _schema(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    try:
        check_schema(connection)
    except SchemaMismatch as error:
        return [Observation(FAIL, str(error), schema_remedy(error))]
    found = str(current(connection))
    if is_ahead(found):
        seen = f"revision {found}; this mqdb was made for {head()}, and works with both"
        return [Observation(WARN, seen, "pip install --upgrade mqdb", {"revision": found})]
    return fine(f"revision {found}", revision=found)


def schema_remedy(error: SchemaMismatch) -> str:
    """The remedy if the schema has another version."""
    return "pip install --upgrade mqdb" if isinstance(error, SchemaTooNew) else "mqdb migrate"


def _durability(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    found = [
        Observation(
            FAIL,
            f"{each.name} is off: a crash of the machine may destroy the database",
            f"ALTER SYSTEM SET {each.name} = on; SELECT pg_reload_conf();",
            {"setting": each.name, "value": each.setting},
        )
        for each in rows(
            connection,
            """SELECT name, setting FROM pg_settings
               WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name""",
        )
    ]
    # PostgreSQL keeps the word as it was written.
    lax = [each for each in _given(connection, "synchronous_commit") if each.value in ("off", "false", "no", "0")]
    found += one_each(lax, lambda each: _of_setting(each, "a crash loses acknowledged messages"))
    # Also if the server's configuration file sets it, which RESET would not change.
    if not lax and row(connection, "SELECT current_setting('synchronous_commit') AS value").value == "off":
        remedy = "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf();"
        seen = "synchronous_commit is off: a crash loses acknowledged messages"
        found.append(Observation(WARN, seen, remedy, {"setting": "synchronous_commit", "value": "off"}))
    return found or fine("fsync, full_page_writes and synchronous_commit are on")


def _isolation(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    found = [each for each in _given(connection, "default_transaction_isolation") if each.value != "read committed"]
    return one_each(found, lambda each: _of_setting(each, "a send in a user's transaction may be refused")) or fine(
        "transactions are read committed unless they request another level"
    )


def _given(connection: Connection, name: str) -> list[Any]:
    """The values given to this database, or to roles that may use the broker, by ALTER DATABASE and ALTER ROLE."""
    return rows(
        connection,
        """SELECT d.datname AS database, r.rolname AS role, split_part(c, '=', 1) AS name,
                  lower(split_part(c, '=', 2)) AS value
           FROM pg_db_role_setting s LEFT JOIN pg_database d ON d.oid = s.setdatabase
           LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) AS c
           WHERE (s.setdatabase = 0 OR d.datname = current_database()) AND split_part(c, '=', 1) = %(name)s
             AND (s.setrole = 0 OR has_schema_privilege(r.oid, 'mqdb', 'USAGE'))
           ORDER BY 1, 2""",
        name=name,
    )


def _of_setting(given: Any, what: str) -> Observation:
    of_database = f"DATABASE {identifier(given.database)}" if given.database else None
    of_role = f"ROLE {identifier(given.role) if given.role else 'ALL'}"
    whose = of_database if given.role is None and of_database else of_role
    where = f" IN {of_database}" if given.role and of_database else ""
    return Observation(
        WARN,
        f"{given.name} of {whose}{where} is {given.value}: {what}",
        f"ALTER {whose}{where} RESET {given.name};",
        {"setting": given.name, "value": given.value, "role": given.role, "database": given.database},
    )


def _autovacuum(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    off = rows(
        connection,
        "SELECT name FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off' ORDER BY name",
    )
    found = [
        Observation(
            FAIL,
            f"{each.name} is off: updated tables grow, and every statement becomes slower",
            f"ALTER SYSTEM SET {each.name} = on; SELECT pg_reload_conf();",
            {"setting": each.name},
        )
        for each in off
    ]
    tables = rows(
        connection,
        """SELECT c.relname AS name FROM pg_class c, pg_options_to_table(c.reloptions) AS o
           WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p')
             AND o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean ORDER BY 1""",
    )
    found += one_each(
        tables,
        lambda each: Observation(
            WARN,
            f"autovacuum is off for mqdb.{each.name}",
            f"ALTER TABLE mqdb.{identifier(each.name)} RESET (autovacuum_enabled);",
            {"table": each.name},
        ),
    )
    return found or fine("autovacuum is on")


def _bloat(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    found = rows(
        connection,
        """SELECT relname AS name, n_dead_tup AS dead, n_live_tup AS live FROM pg_stat_all_tables
           WHERE schemaname = 'mqdb' AND relname IN ('consumer_offset', 'client', 'presence', 'leader', 'queue_lock')
           ORDER BY n_dead_tup DESC""",
    )

    def status(each: Any) -> FindingStatus:
        if each.dead <= thresholds.bloat_least_rows:
            return FindingStatus.OK
        return grade(each.dead / max(each.live, 1), thresholds.bloat_warn_factor, thresholds.bloat_fail_factor)

    return one_each(
        [each for each in found if status(each) is not FindingStatus.OK],
        lambda each: Observation(
            status(each),
            f"mqdb.{each.name} has {each.dead:,} dead rows and {each.live:,} live ones",
            f"VACUUM mqdb.{each.name};  -- after following `mqdb doctor --only xmin`",
            {"table": each.name, "dead_rows": each.dead, "live_rows": each.live},
        ),
    ) or fine(f"at most {found[0].dead:,} dead rows in any table", dead_rows=found[0].dead)


def _wraparound(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    age = row(
        connection,
        """SELECT age(datfrozenxid) AS transactions, greatest(
                      age(datfrozenxid) / current_setting('autovacuum_freeze_max_age')::float,
                      mxid_age(datminmxid) / current_setting('autovacuum_multixact_freeze_max_age')::float) AS share
           FROM pg_database WHERE datname = current_database()""",
    )
    seen = f"the oldest transaction id is {age.share:.1%} of the age at which autovacuum freezes rows"
    status = grade(age.share, thresholds.freeze_warn_share, thresholds.freeze_fail_share)
    return graded(status, seen, "VACUUM (FREEZE);", transactions=age.transactions, share=round(age.share, 4))


def _connections(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    found = row(
        connection,
        """SELECT (SELECT sum(numbackends)::integer FROM pg_stat_database) AS used,
                  current_setting('max_connections')::integer
                  - current_setting('superuser_reserved_connections')::integer
                  - coalesce(current_setting('reserved_connections', true)::integer, 0) AS most""",
    )
    share = found.used / max(found.most, 1)
    status = grade(share, thresholds.connections_warn_share, thresholds.connections_fail_share)
    # This requires a restart of the server.
    remedy = f"ALTER SYSTEM SET max_connections = {found.most * 2};  -- and restart it, or set MQDB_POOL_DSN"
    seen = f"{found.used:,} of {found.most:,} connections are in use"
    return graded(status, seen, remedy, connections=found.used, most_connections=found.most)


def _disk(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # Only superusers, and roles that may read all settings, can see this setting.
    server = row(
        connection,
        """SELECT CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') THEN current_setting('data_directory') END
                      AS directory, extract(epoch FROM pg_postmaster_start_time())::bigint AS started""",
    )
    if server.directory is None or not _is_here(Path(server.directory), server.started):
        return [Observation(INFO, "the files of the server are on another machine, or not visible to you")]
    usage = shutil.disk_usage(server.directory)
    share = 1 - usage.free / usage.total
    status = grade(share, thresholds.disk_warn_share, thresholds.disk_fail_share)
    seen = f"the disk of the server is {share:.0%} full; {usage.free / 2**30:,.1f} GiB are free"
    remedy = "mqdb config  # a shorter file_reserved_time keeps less of the log; or give PostgreSQL a larger disk"
    return graded(status, seen, remedy, share=round(share, 4), free_bytes=usage.free)


#: How long a server on a busy machine may take to allocate its shared memory.
_MEMORY_SECONDS: Final = 60


def _is_here(directory: Path, started: int) -> bool:
    """Whether this is the data directory of the server that started at this time. Source: PostgreSQL, pidfile.h.

    The file contains the start time of the process; the server reports the time when it had its shared memory.
    """
    try:
        return -1 <= started - int((directory / "postmaster.pid").read_text().splitlines()[2]) <= _MEMORY_SECONDS
    except (OSError, ValueError, IndexError):
        return False


def _clock(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    begun = datetime.now(UTC)
    theirs = row(connection, "SELECT mqdb.now() AS now").now
    ended = datetime.now(UTC)
    half = (ended - begun) / 2
    # The difference beyond what the round trip can explain.
    ahead = (theirs - begun - half).total_seconds()
    off = max(abs(ahead) - half.total_seconds(), 0)
    status = grade(off, thresholds.clock_warn_seconds, thresholds.clock_fail_seconds)
    seen = f"the clock of the server is {off:.1f} s {'ahead of' if ahead > 0 else 'behind'} the clock of this machine"
    figures = {"off_seconds": round(off, 3)}
    if status is FindingStatus.OK:
        return fine(f"the clocks of the server and of this machine differ by {off:.1f} s", **figures)
    return [Observation(status, seen, "timedatectl set-ntp true  # on both machines", figures)]


def _pooler(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    # PgBouncer assigns its own pid to its client.
    told = driver(connection).info.backend_pid
    if told == row(connection, "SELECT pg_backend_pid() AS pid").pid:
        return fine("the connection leads directly to PostgreSQL")
    seen = "there is a pooler in between: a pooler that shares connections loses notifications and presence locks"
    return [Observation(WARN, seen, "set MQDB_DSN to PostgreSQL directly, and MQDB_POOL_DSN to the pooler")]


def _wal_level(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    level = row(connection, "SELECT current_setting('wal_level') AS level").level
    return [Observation(INFO, f"wal_level is {level}", None, {"wal_level": level})]


CHECKS: Final[Checks] = {
    DoctorCheck(
        "connection",
        "whether the database answers",
        "FAIL if it does not, or belongs to another broker",
        "correct the DSN, or start the database",
    ): _connection,
    DoctorCheck(
        "server-version",
        "`server_version_num`",
        "WARN above PostgreSQL {newest_server_major}, FAIL below {oldest_server_major}",
        "upgrade mqdb or PostgreSQL",
    ): _version,
    DoctorCheck(
        "schema",
        "the revision of the schema",
        "WARN if it is newer than this mqdb, FAIL if this mqdb does not work with it",
        "upgrade mqdb, or run `mqdb migrate`",
    ): _schema,
    DoctorCheck(
        "durability",
        "`fsync`, `full_page_writes`; `synchronous_commit` of the server, of the database and of roles",
        "FAIL if `fsync` or `full_page_writes` is off, WARN if `synchronous_commit` is off",
        "`ALTER SYSTEM SET`, `ALTER ROLE ... RESET`",
    ): _durability,
    DoctorCheck(
        "isolation",
        "`default_transaction_isolation` of the database and of roles",
        "WARN if the default is not read committed",
        "`ALTER ROLE ... RESET`",
    ): _isolation,
    DoctorCheck(
        "autovacuum",
        "`autovacuum`, `track_counts`, and the option of each table",
        "FAIL if it is off for the server, WARN if it is off for a table",
        "`ALTER SYSTEM SET`, `ALTER TABLE ... RESET`",
    ): _autovacuum,
    DoctorCheck(
        "bloat",
        "dead rows of frequently updated tables",
        "WARN above {bloat_warn_factor} dead rows for each live row, FAIL above {bloat_fail_factor}; only for more "
        "than {bloat_least_rows:,} dead rows",
        "see `xmin`, then `VACUUM`",
    ): _bloat,
    DoctorCheck(
        "wraparound",
        "age of the oldest transaction id, relative to `autovacuum_freeze_max_age`",
        "WARN above {freeze_warn_share:.0%}, FAIL above {freeze_fail_share:.0%}",
        "`VACUUM (FREEZE)`",
    ): _wraparound,
    DoctorCheck(
        "connections",
        "sessions of the server, relative to `max_connections`",
        "WARN above {connections_warn_share:.0%}, FAIL above {connections_fail_share:.0%}",
        "raise the limit, or use a pooler in `MQDB_POOL_DSN`",
    ): _connections,
    DoctorCheck(
        "disk",
        "the disk of the server, if it is on this machine and its path is visible to the role",
        "WARN above {disk_warn_share:.0%}, FAIL above {disk_fail_share:.0%}",
        "a shorter `file_reserved_time`, or a larger disk",
    ): _disk,
    DoctorCheck(
        "clock",
        "the broker's clock compared with that of the machine on which the doctor runs, minus half a round trip",
        "WARN above {clock_warn_seconds} s, FAIL above {clock_fail_seconds} s",
        "run NTP on both machines",
    ): _clock,
    DoctorCheck(
        "pooler",
        "whether the backend has the pid that the connection got at its start",
        "WARN if not, because there is a pooler in between",
        "set `MQDB_DSN` to PostgreSQL itself, and `MQDB_POOL_DSN` to the pooler",
    ): _pooler,
    DoctorCheck("wal-level", "`wal_level`", "INFO always", "none"): _wal_level,
}
