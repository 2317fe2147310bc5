"""The doctor's checks of the server and of its sessions each find their problem, and the suggested remedy works."""

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import ExecStatus
from sqlalchemy import Connection

from mqdb.broker.doctor import examine
from mqdb.broker.doctor.finding import DoctorThresholds, Finding, FindingStatus
from mqdb.store.engine import create_engine
from mqdb_client import Admin
from tests.fixtures.delay import move_clock
from tests.fixtures.doctor import find, find_anew, statuses
from tests.fixtures.pgbouncer import PgBouncer
from tests.fixtures.postgres import Database, query, with_parts
from tests.fixtures.processes import wait_until

FAIL, WARN, INFO, OK = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.INFO, FindingStatus.OK


@pytest.fixture
def other(shared_database: Database) -> Iterator["psycopg.Connection[object]"]:
    """Another user's session, which begins its transactions by itself."""
    with closing(psycopg.connect(shared_database.dsn)) as connection:
        yield connection


@pytest.fixture
def replication_slot(shared_database: Database) -> Iterator[str]:
    """A server-wide slot whose standby has reported the snapshot that it needs, and has disconnected."""
    name = f"doctor_{uuid4().hex}"
    with closing(psycopg.connect(shared_database.superuser_dsn, autocommit=True)) as superuser:
        superuser.execute("SELECT pg_create_physical_replication_slot(%s, true)", [name])
        try:
            _give_feedback(superuser, name)
            yield name
        finally:
            drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
            superuser.execute(drop, [name])


def _give_feedback(superuser: "psycopg.Connection[tuple[object, ...]]", slot: str) -> None:
    """Send the feedback that a hot standby sends with hot_standby_feedback, and nothing else."""
    row = superuser.execute(
        """SELECT pg_snapshot_xmin(pg_current_snapshot())::text, restart_lsn
           FROM pg_replication_slots WHERE slot_name = %s""",
        [slot],
    ).fetchone()
    assert row is not None
    epoch, xmin = divmod(int(str(row[0])), 2**32)
    needs = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND xmin IS NOT NULL"
    info = superuser.info
    with closing(psycopg.connect(info.dsn, password=info.password, replication="true", autocommit=True)) as standby:
        begun = standby.pgconn.exec_(f"START_REPLICATION SLOT {slot} PHYSICAL {row[1]}".encode())
        assert begun.status == ExecStatus.COPY_BOTH
        # The time, the oldest snapshot with its epoch, and that of the catalogs.
        standby.pgconn.put_copy_data(struct.pack("!cqIIII", b"h", 0, xmin, epoch, 0, 0))
        standby.pgconn.flush()
        wait_until(lambda: superuser.execute(needs, [slot]).fetchone() is not None)
    # The session of the standby ends a moment later.
    gone = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
    wait_until(lambda: superuser.execute(gone, [slot]).fetchone() is not None)


def test_a_database_that_is_not_there_fails(shared_database: Database) -> None:
    with Admin(with_parts(shared_database.dsn, database="nowhere")) as admin:
        [_, found] = admin.doctor.examine()

    assert (found.check, found.status) == ("connection", FAIL)
    assert "nowhere" in found.seen


def test_a_disk_that_is_full(shared_broker: Connection, shared_database: Database) -> None:
    [unseen] = find(shared_broker, "disk")
    engine = create_engine(shared_database.superuser_dsn)
    with engine.connect() as connection:
        [full] = find(connection, "disk", disk_fail_share=0)
        [filling] = find(connection, "disk", disk_warn_share=0, disk_fail_share=1)
        [fine] = find(connection, "disk", disk_warn_share=1)
    engine.dispose()

    assert [each.status for each in (unseen, full, filling, fine)] == [INFO, FAIL, WARN, OK]
    assert full.figures["free_bytes"] == pytest.approx(filling.figures["free_bytes"], rel=0.5)
    assert "GiB are free" in filling.seen


def test_a_connection_that_answers_is_fine(shared_broker: Connection) -> None:
    [found] = find(shared_broker, "connection")

    assert found.status is OK
    assert found.figures["round_trip_ms"] is not None


@pytest.mark.parametrize(
    ("thresholds", "status"),
    [({}, OK), ({"newest_server_major": 14}, WARN), ({"oldest_server_major": 99}, FAIL)],
    ids=["known", "newer", "older"],
)
def test_a_version_of_the_server(shared_broker: Connection, thresholds: dict[str, int], status: FindingStatus) -> None:
    assert statuses(find(shared_broker, "server-version", **thresholds)) == [status]


def test_a_database_without_the_schema_fails(empty_database: Database) -> None:
    with Admin(empty_database.dsn) as admin:
        [_, found] = admin.doctor.examine()

    assert (found.check, found.status, found.remedy) == ("schema", FAIL, "mqdb migrate")


def test_another_schema_fails(shared_broker: Connection) -> None:
    assert statuses(find(shared_broker, "schema")) == [OK]
    shared_broker.exec_driver_sql("UPDATE mqdb.alembic_version SET version_num = 'x' || version_num")
    try:
        assert statuses(find(shared_broker, "schema")) == [FAIL]
    finally:
        shared_broker.exec_driver_sql("UPDATE mqdb.alembic_version SET version_num = substr(version_num, 2)")


def test_a_schema_of_the_next_version_warns(shared_broker: Connection) -> None:
    before = shared_broker.exec_driver_sql("SELECT version_num FROM mqdb.alembic_version").scalar_one()
    shared_broker.exec_driver_sql("UPDATE mqdb.alembic_version SET version_num = '0101'")
    try:
        [found] = find(shared_broker, "schema")
    finally:
        shared_broker.exec_driver_sql("UPDATE mqdb.alembic_version SET version_num = %s", (before,))

    assert (found.status, found.remedy) == (WARN, "pip install --upgrade mqdb")
    assert found.seen.startswith("revision 0101; this mqdb was made for 0100.")


def test_a_server_that_does_not_wait_for_the_disk_fails(shared_broker: Connection) -> None:
    # As that of the tests is.
    found = find(shared_broker, "durability")

    assert [(each.status, each.figures["setting"]) for each in found] == [(FAIL, "fsync"), (FAIL, "full_page_writes")]


@pytest.mark.parametrize(
    ("check", "setting", "value"),
    [
        ("durability", "synchronous_commit", "off"),
        ("durability", "synchronous_commit", "False"),
        ("isolation", "default_transaction_isolation", "repeatable read"),
    ],
)
def test_a_setting_of_the_database_or_of_a_role(
    shared_database: Database, check: str, setting: str, value: str
) -> None:
    me = str(query(shared_database.dsn, "SELECT current_user"))
    role, database = sql.Identifier(me), sql.Identifier(shared_database.name)
    shared_database.set_default(setting, value)
    alter = sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} TO {}")
    query(shared_database.dsn, alter.format(role, database, sql.Identifier(setting), sql.Literal(value)).as_string())

    found = [each for each in find_anew(shared_database, check) if each.figures.get("setting") == setting]
    for each in found:
        query(shared_database.dsn, each.remedy or "")

    assert [(each.status, each.figures["role"]) for each in found] == [(WARN, me), (WARN, None)]
    assert [each for each in find_anew(shared_database, check) if each.figures.get("setting") == setting] == []


def test_a_server_that_does_not_wait_for_commits(shared_database: Database) -> None:
    def found() -> list[str]:
        seen = find_anew(shared_database, "durability")
        return [each.remedy or "" for each in seen if each.figures.get("setting") == "synchronous_commit"]

    query(shared_database.superuser_dsn, "ALTER SYSTEM SET synchronous_commit = off")
    try:
        query(shared_database.superuser_dsn, "SELECT pg_reload_conf()")
        wait_until(found)
        [remedy] = found()
        for statement in remedy.rstrip(";").split(";"):
            query(shared_database.superuser_dsn, statement)
        wait_until(lambda: not found())
        # Above whatever postgresql.conf says.
        given = "SELECT setting FROM pg_file_settings WHERE name = 'synchronous_commit' AND applied"
        assert query(shared_database.superuser_dsn, given) == "on"
    finally:
        query(shared_database.superuser_dsn, "ALTER SYSTEM RESET synchronous_commit")
        query(shared_database.superuser_dsn, "SELECT pg_reload_conf()")


def test_a_setting_that_is_written_in_another_way_is_fine(shared_database: Database) -> None:
    shared_database.set_default("default_transaction_isolation", "READ COMMITTED")

    found = find_anew(shared_database, "isolation")
    query(
        shared_database.dsn,
        sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(shared_database.name)).as_string(),
    )

    assert statuses(found) == [OK]


def test_a_server_without_autovacuum_fails(shared_broker: Connection, shared_database: Database) -> None:
    assert statuses(find(shared_broker, "autovacuum")) == [OK]
    query(shared_database.superuser_dsn, "ALTER SYSTEM SET autovacuum = off")
    try:
        query(shared_database.superuser_dsn, "SELECT pg_reload_conf()")
        wait_until(lambda: statuses(find(shared_broker, "autovacuum")) == [FAIL])
    finally:
        query(shared_database.superuser_dsn, "ALTER SYSTEM RESET autovacuum")
        query(shared_database.superuser_dsn, "SELECT pg_reload_conf()")
    wait_until(lambda: statuses(find(shared_broker, "autovacuum")) == [OK])


def test_a_table_without_autovacuum(shared_broker: Connection) -> None:
    shared_broker.exec_driver_sql("ALTER TABLE mqdb.consumer_offset SET (autovacuum_enabled = off)")

    [found] = find(shared_broker, "autovacuum")
    shared_broker.exec_driver_sql(found.remedy or "")

    assert (found.status, found.figures) == (WARN, {"table": "consumer_offset"})
    assert statuses(find(shared_broker, "autovacuum")) == [OK]


def test_a_table_full_of_dead_rows(shared_broker: Connection) -> None:
    shared_broker.exec_driver_sql(
        "INSERT INTO mqdb.presence (client_id, lock_key) SELECT 'c' || i, i FROM generate_series(1, 50) AS i"
    )
    shared_broker.exec_driver_sql("DELETE FROM mqdb.presence")
    shared_broker.exec_driver_sql("SELECT pg_stat_force_next_flush()")

    [warned] = find(shared_broker, "bloat", bloat_least_rows=49, bloat_fail_factor=1_000)
    [failed] = find(shared_broker, "bloat", bloat_least_rows=49, bloat_warn_factor=1, bloat_fail_factor=10)
    shared_broker.exec_driver_sql((failed.remedy or "").partition(";")[0])

    assert (warned.status, failed.status) == (WARN, FAIL)
    assert warned.figures == {"table": "presence", "dead_rows": 50, "live_rows": 0}
    assert statuses(find(shared_broker, "bloat", bloat_least_rows=49)) == [OK]


@pytest.mark.parametrize(
    ("check", "thresholds"),
    [
        ("wraparound", {"freeze_warn_share": 0, "freeze_fail_share": 0}),
        ("connections", {"connections_warn_share": 0, "connections_fail_share": 0}),
    ],
)
def test_a_share_that_is_used_up(shared_broker: Connection, check: str, thresholds: dict[str, float]) -> None:
    warn, _ = thresholds
    assert statuses(find(shared_broker, check)) == [OK]
    assert statuses(find(shared_broker, check, **{warn: 0})) == [WARN]
    [found] = find(shared_broker, check, **thresholds)
    assert found.status is FAIL
    assert found.remedy is not None


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=str)
def test_a_clock_that_is_off(shared_broker: Connection, ahead: timedelta) -> None:
    # So much may a machine under load look at one clock before the other.
    assert statuses(find(shared_broker, "clock", clock_warn_seconds=60)) == [OK]
    move_clock(shared_broker, ahead)
    try:
        [found] = find(shared_broker, "clock")
        [warned] = find(shared_broker, "clock", clock_fail_seconds=7_200)
    finally:
        move_clock(shared_broker, timedelta(0))

    assert (found.status, warned.status) == (FAIL, WARN)
    assert found.figures["off_seconds"] == pytest.approx(3_600, abs=60)


def test_a_pooler_in_between(shared_broker: Connection, shared_database: Database, pgbouncer: PgBouncer) -> None:
    engine = create_engine(pgbouncer.dsn(shared_database.dsn), prepared=False)
    with engine.connect() as connection:
        found = find(connection, "pooler")
    engine.dispose()

    assert statuses(found) == [WARN]
    assert statuses(find(shared_broker, "pooler")) == [OK]


def test_what_there_is_to_know(shared_broker: Connection) -> None:
    assert statuses(find(shared_broker, "wal-level")) == [INFO]
    assert statuses(find(shared_broker, "positions")) == [INFO]


# -- sessions -----------------------------------------------------------------------------------


def test_an_old_snapshot(
    shared_broker: Connection, shared_database: Database, other: "psycopg.Connection[object]"
) -> None:
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("SELECT 1")
    query(shared_database.dsn, "SELECT pg_current_xact_id()")

    [warned] = find(shared_broker, "xmin", xmin_warn_transactions=0)
    [failed] = find(shared_broker, "xmin", xmin_warn_transactions=0, xmin_fail_transactions=0)
    assert (warned.status, failed.status) == (WARN, FAIL)
    assert (warned.figures["kind"], warned.figures["name"]) == ("backend", str(other.info.backend_pid))

    shared_broker.exec_driver_sql(warned.remedy or "")
    wait_until(lambda: statuses(find(shared_broker, "xmin", xmin_warn_transactions=0)) == [OK])


def test_a_prepared_transaction(
    shared_broker: Connection, shared_database: Database, other: "psycopg.Connection[object]"
) -> None:
    other.execute("SELECT pg_current_xact_id()")
    other.execute("PREPARE TRANSACTION 'the doctor''s'")
    other.rollback()
    query(shared_database.dsn, "SELECT pg_current_xact_id()")

    [found] = find(shared_broker, "xmin", xmin_warn_transactions=0)
    shared_broker.exec_driver_sql(found.remedy or "")

    assert (found.status, found.figures["name"]) == (WARN, "the doctor's")
    assert statuses(find(shared_broker, "xmin", xmin_warn_transactions=0)) == [OK]


def test_a_replication_slot_that_nobody_reads(
    shared_broker: Connection, shared_database: Database, replication_slot: str
) -> None:
    def of_slot(**thresholds: int) -> list[Finding]:
        found = find(shared_broker, "xmin", **thresholds)
        return [each for each in found if each.figures.get("name") == replication_slot]

    query(shared_database.dsn, "SELECT pg_current_xact_id()")

    [warned] = of_slot(xmin_warn_transactions=0)
    [failed] = of_slot(xmin_warn_transactions=0, xmin_fail_transactions=0)
    assert of_slot() == []
    query(shared_database.superuser_dsn, warned.remedy or "")

    assert (warned.status, failed.status, warned.figures["kind"]) == (WARN, FAIL, "slot")
    assert of_slot(xmin_warn_transactions=0) == []


def _wait_until_nothing_is_hidden(connection: Connection) -> None:
    """Wait until no superuser session of an earlier test is left.

    Such a session ends a moment after it was closed, and the owner can see little of it.
    """
    superusers = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user"
    wait_until(lambda: connection.exec_driver_sql(superusers).scalar_one() == 0)


def test_a_transaction_in_which_nothing_happens(shared_broker: Connection, other: "psycopg.Connection[object]") -> None:
    _wait_until_nothing_is_hidden(shared_broker)
    other.execute("SELECT 1")

    [warned] = find(shared_broker, "idle-in-transaction", idle_warn_seconds=0)
    [failed] = find(shared_broker, "idle-in-transaction", idle_warn_seconds=0, idle_fail_seconds=0)

    assert statuses(find(shared_broker, "idle-in-transaction")) == [OK]
    assert (warned.status, failed.status) == (WARN, FAIL)
    assert warned.figures["pid"] == other.info.backend_pid


@pytest.mark.parametrize("check", ["xmin", "idle-in-transaction"])
def test_sessions_of_roles_of_which_the_owner_sees_little(
    shared_broker: Connection, shared_database: Database, check: str
) -> None:
    _wait_until_nothing_is_hidden(shared_broker)
    with closing(psycopg.connect(shared_database.superuser_dsn, autocommit=True)) as superuser:
        # Of one that has just begun nobody is told anything.
        superuser.execute("SELECT 1")

        [found] = find(shared_broker, check)
        superuser.execute((found.remedy or "").encode())
        try:
            seen = find(shared_broker, check)
        finally:
            superuser.execute((found.remedy or "").replace("GRANT", "REVOKE").replace(" TO ", " FROM ").encode())

    assert (found.status, found.figures["hidden_sessions"]) == (FindingStatus.UNKNOWN, 1)
    assert statuses(seen) == [OK]


@contextmanager
def _waiting(shared_database: Database, statement: bytes) -> Iterator[int]:
    """A session that waits for its statement to end; yields its backend."""
    with closing(psycopg.connect(shared_database.dsn, autocommit=True)) as connection:
        connection.pgconn.send_query(statement)
        yield connection.info.backend_pid


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("LOCK TABLE mqdb.cron", b"SELECT FROM mqdb.cron"),
        ("SELECT FROM mqdb.topic WHERE topic = 'TBW102' FOR UPDATE", b"UPDATE mqdb.topic SET perm = perm"),
    ],
    ids=["table", "row"],
)
def test_a_session_that_waits_for_a_lock(
    shared_broker: Connection, shared_database: Database, other: "psycopg.Connection[object]", held: str, wanted: bytes
) -> None:
    other.execute(held.encode())
    with _waiting(shared_database, wanted) as pid:
        wait_until(lambda: statuses(find(shared_broker, "locks", lock_warn_seconds=0)) == [WARN])
        [found] = find(shared_broker, "locks", lock_warn_seconds=0)
        assert statuses(find(shared_broker, "locks", lock_warn_seconds=3_600)) == [OK]
        other.rollback()

    assert found.figures["pid"] == pid
    assert found.remedy == f"SELECT pg_terminate_backend({other.info.backend_pid});"


def test_a_session_that_waits_for_a_prepared_transaction(
    shared_broker: Connection, shared_database: Database, other: "psycopg.Connection[object]"
) -> None:
    other.execute("LOCK TABLE mqdb.cron")
    other.execute("PREPARE TRANSACTION 'in the way'")
    other.rollback()
    with _waiting(shared_database, b"SELECT FROM mqdb.cron"):
        wait_until(lambda: statuses(find(shared_broker, "locks", lock_warn_seconds=0)) == [WARN])
        [found] = find(shared_broker, "locks", lock_warn_seconds=0)
        shared_broker.exec_driver_sql("ROLLBACK PREPARED 'in the way'")

    assert "pg_prepared_xacts" in (found.remedy or "")


def test_a_listener_that_keeps_the_notifications(
    shared_broker: Connection, shared_database: Database, other: "psycopg.Connection[object]"
) -> None:
    other.execute("LISTEN doctor")
    other.commit()
    other.execute("SELECT 1")
    # PostgreSQL counts pages, of 8 kB.
    for _ in range(4):
        query(shared_database.dsn, "SELECT pg_notify('doctor', repeat('x', 7900))")

    assert statuses(find(shared_broker, "notify-queue")) == [OK]
    assert statuses(find(shared_broker, "notify-queue", notify_warn_share=0)) == [WARN]
    [found] = find(shared_broker, "notify-queue", notify_warn_share=0, notify_fail_share=0)
    assert found.status is FAIL
    assert found.remedy is not None
    assert "idle-in-transaction" in found.remedy


# -- the examination ------------------------------------------------------------------------------


def test_a_check_that_takes_too_long_keeps_no_other_from_its_turn(
    shared_broker: Connection, other: "psycopg.Connection[object]"
) -> None:
    other.execute("LOCK TABLE mqdb.cron")

    thresholds = DoctorThresholds(statement_timeout_seconds=0.5)
    late, counted, schema = examine.examine(shared_broker, thresholds, ["crons", "positions", "schema"])[::-1]

    assert (late.check, late.status) == ("crons", FindingStatus.UNKNOWN)
    assert late.error is not None
    assert (schema.status, counted.status) == (OK, INFO)
    assert examine.exit_code([late, schema]) == 1
    assert query_of(shared_broker) == "0"


def query_of(connection: Connection) -> str:
    """The session's time-out."""
    return str(connection.exec_driver_sql("SHOW statement_timeout").scalar_one())


def test_a_connection_that_is_lost_on_the_way(shared_database: Database) -> None:
    engine = create_engine(shared_database.dsn)
    with engine.connect() as connection:
        assert statuses(find(connection, "positions")) == [INFO]
        query(
            shared_database.dsn,
            f"SELECT pg_terminate_backend({connection.exec_driver_sql('SELECT pg_backend_pid()').scalar()})",
        )
        found = examine.examine(connection, only=["schema", "positions"])
        connection.invalidate()
    engine.dispose()

    assert [(each.status, each.error is not None) for each in found] == [(FindingStatus.UNKNOWN, True)] * 2


def test_nothing_can_be_changed_by_a_check(shared_broker: Connection) -> None:
    for finding in examine.examine(shared_broker):
        assert finding.error is None, finding
