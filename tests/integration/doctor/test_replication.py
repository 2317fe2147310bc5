"""The doctor's checks of replication, on a primary and on its standby, each find their problem."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, text

from mqdb.broker.doctor import examine
from mqdb.broker.doctor.finding import FindingStatus
from mqdb.broker.doctor.session_checks import SERVICES
from mqdb.embedded import EmbeddedPostgres
from mqdb.service.service import Service
from mqdb.store.engine import create_engine
from mqdb.store.replication import Receiver, SynchronousStandbys, parse_synchronous_standbys, unidentified_tables
from mqdb.store.server_choice import ServerRole as ServerChoice
from mqdb.web.sampler import Sampler
from mqdb_client import Admin
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.command_line import Place, served
from tests.fixtures.doctor import find, find_anew, statuses
from tests.fixtures.postgres import Database, query, superuser_dsn, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.standby import WRITE, Standby
from tests.fixtures.threads import Doing

WHERE = ("host", "port")

FAIL, WARN, INFO, OK = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.INFO, FindingStatus.OK


@contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    engine = create_engine(dsn, server=ServerChoice.ANY)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def at_standby(standby: Standby) -> Iterator[Connection]:
    with connected(standby.dsn) as connection:
        yield connection


@pytest.fixture
def at_primary(replicated: Database) -> Iterator[Connection]:
    with connected(replicated.dsn) as connection:
        yield connection


# -- a standby ------------------------------------------------------------------------------------


def test_a_standby_says_what_it_is_and_nothing_fails_there(at_standby: Connection) -> None:
    found = {each.check: each for each in examine.examine(at_standby)}

    assert found["standby"].status is INFO
    assert "is a standby of 127.0.0.1:" in found["standby"].seen
    assert found["standby"].figures["behind_bytes"] == 0
    # The server of the test runs without fsync.
    assert {each.check for each in found.values() if each.status in (FAIL, WARN)} <= {"durability"}
    assert [each for each in found.values() if each.error] == []


def test_with_all_hosts_in_the_dsn_the_primary_is_found_as_the_advice_says(
    standby: Standby, replicated: Database
) -> None:
    [advice] = [each.remedy for each in examine.chosen(["standby"])]
    hosts, ports = (
        ",".join(str(conninfo_to_dict(dsn)[name]) for dsn in (standby.dsn, replicated.dsn)) for name in WHERE
    )
    all_hosts = f"{standby.dsn.partition('?')[0]}?host={quote(hosts)}&port={ports}"

    seen = {}
    for attributes in ("&target_session_attrs=any", ""):
        with Admin(all_hosts + attributes) as admin:
            [found] = admin.doctor.examine(only=["standby"])
            seen[attributes] = found.figures["is_standby"]

    assert "all hosts in the DSN, without `target_session_attrs`" in advice
    assert seen == {"&target_session_attrs=any": True, "": False}


def test_a_standby_that_does_not_replay_is_behind(
    standby: Standby, at_standby: Connection, replicated: Database
) -> None:
    query(replicated.superuser_dsn, WRITE)
    standby.catch_up()
    with closing(psycopg.connect(standby.superuser_dsn, autocommit=True)) as superuser:
        superuser.execute("SELECT pg_wal_replay_pause()")
        try:
            query(replicated.superuser_dsn, WRITE)
            wait_until(lambda: statuses(find(at_standby, "standby", standby_warn_seconds=0)) == [WARN])
            [found] = find(at_standby, "standby", standby_warn_seconds=0)
        finally:
            superuser.execute("SELECT pg_wal_replay_resume()")

    behind = found.figures["behind_bytes"]
    assert isinstance(behind, int)
    assert behind > 10_000
    assert "it has yet to replay" in found.seen


def test_a_role_without_rights_sees_the_lag(standby: Standby, replicated: Database) -> None:
    query(replicated.superuser_dsn, "CREATE ROLE stranger LOGIN PASSWORD 'secret'")
    stranger = with_parts(replicated.dsn, user="stranger", password="secret")
    with Admin(replicated.dsn) as owner:
        owner.topics.create("shared")
        owner.acl.grant("stranger", read=["shared"])
    standby.catch_up()
    try:
        with Admin(standby.at_its_socket(stranger)) as admin:
            at_standby = {each.check: each for each in admin.doctor.examine()}
        with Admin(stranger) as admin:
            at_primary = {each.check: each for each in admin.doctor.examine()}
    finally:
        with Admin(replicated.dsn) as owner:
            owner.acl.revoke("stranger", read=["shared"])
        query(replicated.superuser_dsn, "DROP OWNED BY stranger")
        query(replicated.superuser_dsn, "DROP ROLE stranger")

    assert [each for each in (*at_standby.values(), *at_primary.values()) if each.error] == []
    assert "a standby of a server that is not visible to the role" in at_standby["standby"].seen
    assert at_standby["standby"].figures["behind_bytes"] == 0
    assert at_primary["standby"].seen.endswith("connected to it: standby")
    assert at_primary["synchronous"].status in (OK, FindingStatus.UNKNOWN)


def test_a_primary_names_its_standbys(at_primary: Connection) -> None:
    [found] = find(at_primary, "standby")

    assert found.status is OK
    assert "not a standby; connected to it: standby" in found.seen


def test_the_services_run_beside_the_primary(at_standby: Connection, place: Place) -> None:
    assert statuses(find(at_standby, "leader")) == [INFO]

    with served(place):
        wait_until(lambda: statuses(find(at_standby, "leader")) == [OK])
        [found] = find(at_standby, "leader")

    assert "with the primary" in found.seen


@pytest.fixture
def place(replicated: Database, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("home"), replicated.dsn)


# -- commits that wait for standbys ---------------------------------------------------------------


def test_commits_that_wait_are_counted(standby: Standby, at_primary: Connection) -> None:
    assert statuses(find(at_primary, "synchronous")) == [OK]

    with standby.committing():
        wait_until(lambda: find(at_primary, "synchronous", sync_warn_seconds=0)[0].status is WARN)
        [found] = find(at_primary, "synchronous", sync_warn_seconds=0)
        [worse] = find(at_primary, "synchronous", sync_warn_seconds=0, sync_fail_seconds=0)
        assert statuses(find(at_primary, "synchronous", sync_warn_seconds=3_600)) == [OK]

    assert found.figures["sessions"] == 1
    assert "standby" in found.seen
    assert worse.status is FAIL


def test_a_standby_that_nobody_knows(standby: Standby, at_primary: Connection) -> None:
    standby.name("ANY 2 (standby, nowhere)")
    try:
        [found] = find(at_primary, "synchronous")
    finally:
        standby.make_synchronous()

    assert found.status is FAIL
    assert "2 of standby, nowhere, of which 1 are connected" in found.seen
    assert "synchronous_standby_names" in (found.remedy or "")


def test_commits_that_wait_for_nobody(standby: Standby, at_primary: Connection) -> None:
    with standby.dismissed():
        [found] = find(at_primary, "synchronous")

    assert (found.status, found.seen) == (OK, "commits do not wait for a standby")


def test_sends_that_are_to_wait_for_a_standby_and_have_none(standby: Standby, at_primary: Connection) -> None:
    [usual] = find(at_primary, "synchronous")
    at_primary.execute(text("UPDATE mqdb.broker SET default_durability = 'SYNC_MASTER'"))
    try:
        [asked] = find(at_primary, "synchronous")
        with standby.dismissed():
            [alone] = find(at_primary, "synchronous")
    finally:
        at_primary.execute(text("UPDATE mqdb.broker SET default_durability = 'SYNC_FLUSH'"))

    assert "a send waits only if its producer requested" in usual.seen
    assert (asked.status, "sends do, too" in asked.seen) == (OK, True)
    assert (alone.status, "SLAVE_NOT_AVAILABLE" in alone.seen) == (WARN, True)


def test_the_doctor_ends_no_session_that_waits_for_a_standby(standby: Standby, at_primary: Connection) -> None:
    """The doctor does not end a session that waits for a standby.

    The same holds for a session that waits behind it, here the second of three.
    """
    with (
        closing(psycopg.connect(standby.primary.dsn)) as second,
        closing(psycopg.connect(standby.primary.dsn)) as third,
    ):
        second.execute("LOCK TABLE mqdb.topic")
        with standby.committing("LOCK TABLE mqdb.cron"):
            doing = [
                Doing(partial(second.execute, "LOCK TABLE mqdb.cron")),
                Doing(partial(third.execute, "SELECT FROM mqdb.queue, mqdb.topic")),
            ]
            wait_until(lambda: statuses(find(at_primary, "locks", lock_warn_seconds=0)) == [WARN, WARN])
            found = find(at_primary, "locks", lock_warn_seconds=0)
            held = {each.remedy for each in find(at_primary, "xmin", xmin_warn_transactions=-1)}
        doing[0].outcome()
        second.rollback()
        doing[1].outcome()

    assert {each.remedy for each in found} == {"mqdb doctor --only synchronous"}
    assert any("blocks all of them" in each.seen for each in found)
    assert "mqdb doctor --only synchronous" in held


def test_the_doctor_knows_all_services_of_the_broker() -> None:
    def below(kind: type[Any]) -> Iterator[type[Any]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    found = {*below(Service), Sampler}
    ours = [kind for kind in found if kind.__module__.startswith("mqdb.") and hasattr(kind, "name")]

    assert {"mqdb serve"} | {f"mqdb {kind.name}" for kind in ours} == SERVICES


def test_the_doctor_ends_no_service_of_the_broker(standby: Standby, at_primary: Connection) -> None:
    with (
        closing(psycopg.connect(standby.primary.dsn, application_name="mqdb dispatcher")) as service,
        closing(psycopg.connect(standby.primary.dsn)) as other,
    ):
        service.execute("LOCK TABLE mqdb.cron")
        doing = Doing(partial(other.execute, "LOCK TABLE mqdb.cron"))
        wait_until(lambda: statuses(find(at_primary, "locks", lock_warn_seconds=0)) == [WARN])
        [found] = find(at_primary, "locks", lock_warn_seconds=0)
        service.rollback()
        doing.outcome()

    assert "pg_terminate_backend" not in (found.remedy or "")
    assert "mqdb serve" in (found.remedy or "")


@pytest.mark.parametrize(
    ("setting", "number", "names"),
    [
        ("", 0, ()),
        ("pg1", 1, ("pg1",)),
        ("pg1, pg2", 1, ("pg1", "pg2")),
        ("*", 1, ("*",)),
        ('2 ("pg-1", pg2)', 2, ("pg-1", "pg2")),
        ('first 1 ("a ""b""")', 1, ('a "b"',)),
        ("ANY 2 (a,b,c)", 2, ("a", "b", "c")),
    ],
)
def test_the_setting_is_read_as_postgresql_reads_it(setting: str, number: int, names: tuple[str, ...]) -> None:
    assert parse_synchronous_standbys(setting) == SynchronousStandbys(number, names)


def test_names_of_standbys_have_no_case() -> None:
    assert parse_synchronous_standbys("PG1").fits(Receiver("pg1", None, None, None, None))


# -- publications, slots, the archive -------------------------------------------------------------


def test_a_publication_that_takes_a_table_without_identity(shared_database: Database) -> None:
    dsn = shared_database.superuser_dsn
    query(dsn, "CREATE TABLE mqdb.by_hand (number integer)")
    query(dsn, "CREATE TABLE mqdb.parts (number integer) PARTITION BY RANGE (number)")
    query(dsn, "CREATE TABLE mqdb.parts_1 PARTITION OF mqdb.parts FOR VALUES FROM (0) TO (10)")
    try:
        for tables, named in (
            ("FOR ALL TABLES", {"by_hand", "parts_1"}),
            ("FOR TABLES IN SCHEMA mqdb", {"by_hand", "parts_1"}),
            ("FOR TABLE mqdb.parts WITH (publish_via_partition_root)", {"parts_1"}),
            ("FOR TABLE mqdb.by_hand WITH (publish = 'insert, truncate')", set()),
        ):
            query(dsn, f"CREATE PUBLICATION everything {tables}")
            with connected(shared_database.dsn) as connection:
                found = {each.name for each in unidentified_tables(connection)}
            query(dsn, "DROP PUBLICATION everything")
            assert found & {"by_hand", "parts_1"} == named
        query(dsn, "CREATE PUBLICATION everything FOR TABLE mqdb.by_hand")
        [missing] = find_anew(shared_database, "publications")
        query(dsn, missing.remedy or "")
        assert statuses(find_anew(shared_database, "publications")) == [OK]
        query(dsn, "DROP PUBLICATION everything")
    finally:
        query(dsn, "DROP TABLE mqdb.by_hand, mqdb.parts")
    assert (missing.status, missing.figures["table"]) == (FAIL, "by_hand")


def test_a_slot_that_keeps_the_log(shared_database: Database) -> None:
    dsn = shared_database.superuser_dsn
    query(dsn, "SELECT pg_create_physical_replication_slot('left', true)")
    query(dsn, WRITE)

    [found] = [each for each in find_anew(shared_database, "slots") if each.figures.get("slot") == "left"]
    [worse] = [
        each
        for each in find_anew(shared_database, "slots", slot_warn_bytes=0, slot_fail_bytes=9_999)
        if each.figures.get("slot") == "left"
    ]
    query(dsn, (found.remedy or "").partition(";")[0])

    assert (found.status, worse.status) == (WARN, FAIL)
    assert "it is not in use" in found.seen
    assert "left" not in {each.figures.get("slot") for each in find_anew(shared_database, "slots")}


def test_a_slot_whose_log_is_gone() -> None:
    """A replication slot whose WAL is gone, as after a standby was down for a night:

    PostgreSQL keeps only a limited amount of WAL.
    """
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with home_with_cluster() as home, EmbeddedPostgres(home, durable=False, settings=settings) as server:
        database = Database(server.dsn, superuser_dsn(server, "mqdb"))
        query(database.superuser_dsn, "SELECT pg_create_physical_replication_slot('left', true)")
        for _ in range(4):
            query(database.superuser_dsn, WRITE)
            query(database.superuser_dsn, "SELECT pg_switch_wal()")
        query(database.superuser_dsn, "CHECKPOINT")
        [found] = find_anew(database, "slots")
        database.close()

    assert found.status is FAIL
    assert "its wal_status is lost" in found.seen


def test_an_archive_that_takes_nothing() -> None:
    settings = {"archive_mode": "on", "archive_command": "false"}
    with home_with_cluster() as home, EmbeddedPostgres(home, durable=False, settings=settings) as server:
        database = Database(server.dsn, superuser_dsn(server, "mqdb"))
        query(database.superuser_dsn, "SELECT pg_logical_emit_message(true, 'doctor', 'x'), pg_switch_wal()")
        wait_until(lambda: statuses(find_anew(database, "archiver")) == [WARN])
        [found] = find_anew(database, "archiver")
        [worse] = find_anew(database, "archiver", archive_fail_seconds=0)
        query(database.superuser_dsn, "ALTER SYSTEM SET archive_command = 'true'")
        database.close()

    assert "could not be archived" in found.seen
    assert worse.status is FAIL


def test_a_server_that_archives_nothing(shared_database: Database) -> None:
    assert statuses(find_anew(shared_database, "archiver")) == [INFO]
