"""Replication in /metrics: standbys, commits that wait for them, slots, the archive, publications."""

from collections.abc import Iterator

import pytest

from mqdb.embedded import EmbeddedPostgres
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.web.histories import Histories
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.postgres import Database, query, superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.standby import WRITE, Standby
from tests.fixtures.web import ANY_PORT, scrape, wait_for_sample


@pytest.fixture
def slot(replicated: Database) -> Iterator[None]:
    """A replication slot that keeps 10 kB."""
    query(replicated.superuser_dsn, "SELECT pg_create_physical_replication_slot('left', true)")
    query(replicated.superuser_dsn, WRITE)
    yield
    query(replicated.superuser_dsn, "SELECT pg_drop_replication_slot('left')")


@pytest.fixture
def by_hand(replicated: Database) -> Iterator[None]:
    """A table without a replica identity in a publication."""
    query(replicated.superuser_dsn, "CREATE TABLE mqdb.by_hand (number integer)")
    query(replicated.superuser_dsn, "CREATE PUBLICATION everything FOR TABLE mqdb.by_hand")
    yield
    query(replicated.superuser_dsn, "DROP PUBLICATION everything")
    query(replicated.superuser_dsn, "DROP TABLE mqdb.by_hand")


@pytest.mark.usefixtures("slot", "by_hand", "standby")
def test_replication_is_told(replicated: Database) -> None:
    with Server(load_settings(dsn=replicated.dsn, http=ANY_PORT)) as server:
        found = wait_for_sample(server)

    expected = {
        "mqdb_server_is_standby": 0,
        "mqdb_server_timeline": 1,
        "mqdb_history_changes_total": 0,
        "mqdb_standbys{sync}": 1,
        "mqdb_sync_waiting_sessions": 0,
        "mqdb_sync_wait_seconds": 0,
        "mqdb_slots_inactive": 1,
        "mqdb_archiver_failures_total": 0,
        "mqdb_archiver_failing_seconds": 0,
        "mqdb_published_tables_without_identity": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["mqdb_slot_kept_bytes{left}"] > 10_000
    assert found["mqdb_standby_behind_bytes{standby}"] >= 0
    assert found["mqdb_standby_behind_seconds{standby}"] >= 0


def test_a_commit_that_waits_for_a_standby_is_told(standby: Standby, replicated: Database) -> None:
    with standby.committing(), Server(load_settings(dsn=replicated.dsn, http=ANY_PORT)) as server:
        found = wait_for_sample(server)

    assert found["mqdb_sync_waiting_sessions"] >= 1
    assert found["mqdb_sync_wait_seconds"] > 0


def test_a_server_that_was_started_anew_and_an_archive_that_fails_are_told() -> None:
    settings = {"archive_mode": "on", "archive_command": "false"}
    with (
        home_with_cluster() as home,
        EmbeddedPostgres(home, durable=False, settings=settings) as postgres,
        Server(load_settings(dsn=postgres.dsn, http=ANY_PORT)) as server,
    ):
        wait_for_sample(server)
        query(superuser_dsn(postgres, "mqdb"), "SELECT pg_switch_wal()")
        failed = "SELECT last_failed_time IS NOT NULL FROM pg_stat_archiver"
        wait_until(lambda: query(superuser_dsn(postgres, "mqdb"), failed))
        postgres.restart()
        wait_until(lambda: scrape(server)["mqdb_history_changes_total"] == 1)
        found = wait_for_sample(server)

    assert found["mqdb_archiver_failures_total"] >= 1
    assert found["mqdb_archiver_failing_seconds"] > 0


def test_histories_are_counted_when_they_change() -> None:
    histories = Histories()

    for history in (7, 7, 8, 8, 7):
        histories.note(history)

    assert histories.changes == 2
