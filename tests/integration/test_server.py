"""A broker process, here in the process of the test. Those that are killed are in tests/acceptance."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from mqdb.dsn import redact
from mqdb.embedded import EmbeddedPostgres
from mqdb.errors import BrokerMisnamed, BrokerUnavailable, IllegalState, SchemaMissing, SchemaTooNew, SettingInvalid
from mqdb.server import Server, keeper_config
from mqdb.settings import load_settings
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database, drop_database
from tests.fixtures.processes import wait_until


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database without a schema."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE nothing_yet")
        database = Database(urlsplit(postgres.dsn)._replace(path="/nothing_yet").geturl())
        yield database
        database.close()
    drop_database(postgres, "nothing_yet")


def sessions(database: Database) -> int:
    """How many sessions of mqdb the database has."""
    statement = """SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name ^@ 'mqdb'"""
    [(count,)] = database.rows(statement)
    return int(count)


def test_an_empty_database_becomes_a_broker(empty_database: Database) -> None:
    with Server(load_settings(dsn=empty_database.dsn, broker_name="broker-7", cluster_name="eu.west")) as server:
        wait_until(lambda: server.is_leader)

        assert scalar(empty_database.connect(), "SELECT broker_name FROM mqdb.broker") == "broker-7"
        assert scalar(empty_database.connect(), "SELECT cluster_name FROM mqdb.broker") == "eu.west"
        assert server.dsn == empty_database.dsn
        assert not server.owns_postgres
        wait_until(lambda: sessions(empty_database) >= 5)


def test_a_broker_of_another_cluster_than_the_settings_say_is_refused(database: Database) -> None:
    with pytest.raises(SettingInvalid, match=r"'other'.*the broker belongs to cluster 'DefaultCluster'"):
        Server(load_settings(dsn=database.dsn, cluster_name="other")).start()

    wait_until(lambda: sessions(database) == 0)


def test_a_stopped_server_leaves_nothing_and_can_be_started_again(database: Database) -> None:
    server = Server(load_settings(dsn=database.dsn))
    server.stop()
    server.start()
    wait_until(lambda: server.is_leader)

    server.stop()
    server.stop()

    assert not server.is_leader
    wait_until(lambda: sessions(database) == 0)
    with server:
        wait_until(lambda: server.is_leader)


def test_a_server_is_started_once(database: Database) -> None:
    with Server(load_settings(dsn=database.dsn)) as server:
        with pytest.raises(IllegalState, match="started already"):
            server.start()

        wait_until(lambda: server.is_leader)


def test_two_servers_share_the_work_of_one(database: Database) -> None:
    with Server(load_settings(dsn=database.dsn)) as first:
        wait_until(lambda: first.is_leader)
        with Server(load_settings(dsn=database.dsn)) as second:
            assert not second.is_leader
            first.stop()
            wait_until(lambda: second.is_leader)


def test_a_schema_is_not_touched_where_that_is_forbidden(empty_database: Database) -> None:
    with pytest.raises(SchemaMissing, match="mqdb migrate"):
        Server(load_settings(dsn=empty_database.dsn, auto_migrate_enable=False)).start()

    assert scalar(empty_database.connect(), "SELECT to_regnamespace('mqdb') IS NULL")
    wait_until(lambda: sessions(empty_database) == 0)


def test_a_newer_schema_is_refused(database: Database) -> None:
    database.connect().execute("UPDATE mqdb.alembic_version SET version_num = '9999'")

    with pytest.raises(SchemaTooNew, match="9999"):
        Server(load_settings(dsn=database.dsn)).start()


def test_a_broker_of_another_name_is_refused(database: Database) -> None:
    with pytest.raises(BrokerMisnamed, match="this database is broker 'broker-a', not 'broker-b'"):
        Server(load_settings(dsn=f"broker-b={database.dsn}")).start()

    wait_until(lambda: sessions(database) == 0)


def test_a_database_that_is_down_is_named_without_its_password(database: Database) -> None:
    dsn = urlsplit(database.dsn)
    nobody = dsn._replace(netloc=f"{dsn.username}:secret@127.0.0.1:1").geturl()

    with pytest.raises(BrokerUnavailable) as error:
        Server(load_settings(dsn=nobody)).start()

    assert redact(nobody) in str(error.value)
    assert "secret" not in str(error.value)


def test_what_the_settings_say_of_filters_is_what_the_broker_says(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    said = "SELECT enable_property_filter, filter_support_retry FROM mqdb.broker"
    assert database.connect().execute(said).fetchone() == (True, False)

    with Server(load_settings(dsn=database.dsn, enable_property_filter=False, filter_support_retry=True)):
        assert database.connect().execute(said).fetchone() == (False, True)
    with Server(load_settings(dsn=database.dsn)):
        assert database.connect().execute(said).fetchone() == (True, False)
    with Server(load_settings(dsn=database.dsn)):
        assert [record.message for record in caplog.records].count("changed the filter settings") == 2


def test_several_brokers_are_not_for_one_process(database: Database) -> None:
    with pytest.raises(SettingInvalid, match="lists several brokers"):
        Server(load_settings(dsn=f"broker-a={database.dsn};broker-b={database.dsn}")).start()


def test_retention_follows_the_settings(tmp_path: Path) -> None:
    settings = load_settings(
        home=tmp_path, file_reserved_time="48h", delete_when="01;13", disk_max_used_space_percent=60
    )

    config = keeper_config(settings)

    assert config.retention.file_reserved_time == timedelta(hours=48)
    assert config.retention.delete_when == (1, 13)
    assert config.retention.disk_max_used_space_percent == 60
    assert config.retention.disk_clean_forcibly_percent == 85
    assert config.disk_used_percent is not None
    assert 0 < config.disk_used_percent() < 100


def test_the_disk_of_a_server_elsewhere_does_not_count(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, dsn="postgresql://127.0.0.1/mqdb")

    assert keeper_config(settings).disk_used_percent is None
