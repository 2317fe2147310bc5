"""A broker process, run here in the test's own process. Broker processes that are killed are in tests/acceptance."""

import logging
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from mqdb.common.dsn import redact
from mqdb.embedded import EmbeddedPostgres, Home
from mqdb.embedded.starting import is_starting
from mqdb.errors import BrokerMisnamed, BrokerUnavailable, IllegalState, SchemaMissing, SchemaTooNew, SettingInvalid
from mqdb.server import Server
from mqdb.server.service_configs import keeper_config
from mqdb.settings import load_settings
from mqdb.store import migrations
from mqdb_client import Admin
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database, create_database, drop_database, with_parts
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import MakeRole


def sessions(database: Database) -> int:
    """The number of mqdb sessions in the database."""
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


def test_a_role_that_could_never_lead_is_refused(database: Database, role: MakeRole) -> None:
    dsn = role("sender")
    with Admin(database.dsn) as admin:
        admin.acl.grant("sender", send=["orders"])

    with pytest.raises(SettingInvalid, match="does not own the broker"):
        Server(load_settings(dsn=dsn)).start()


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
    nobody = with_parts(database.dsn, password="secret", port=1)

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
        assert caplog.text.count("changed setting ") == 4


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


def test_a_database_that_is_dropped_is_named_once_and_one_that_is_made_anew_is_led(
    empty_database: Database, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[None] = []

    class Counting(Server):
        def _connect_to_lead(self) -> Connection:
            tries.append(None)
            return super()._connect_to_lead()

    with Counting(load_settings(dsn=empty_database.dsn)) as server:
        wait_until(lambda: server.is_leader)
        drop_database(postgres, empty_database.name)
        tries.clear()
        wait_until(lambda: len(tries) > 5)
        assert not server.is_leader

        create_database(postgres, empty_database.name)
        wait_until(lambda: server.is_leader)
        topic_of_all = "SELECT count(*) FROM mqdb.topic"
        assert empty_database.rows(topic_of_all) != [(0,)]

    sentence = f'database "{empty_database.name}" does not exist'
    missing = [r for r in caplog.records if sentence in getattr(r, "reason", "")]
    assert len([record for record in missing if record.levelno >= logging.WARNING]) == 1
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_database_made_anew_is_left_alone_where_migrations_are_off(
    empty_database: Database, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    migrations.upgrade(empty_database.dsn)
    with Server(load_settings(dsn=empty_database.dsn, auto_migrate_enable=False)) as server:
        wait_until(lambda: server.is_leader)
        drop_database(postgres, empty_database.name)
        create_database(postgres, empty_database.name)
        wait_until(lambda: "create it with: mqdb migrate" in " ".join(getattr(r, "reason", "") for r in caplog.records))
        assert not server.is_leader

        migrations.upgrade(empty_database.dsn)
        wait_until(lambda: server.is_leader)

    assert [record for record in caplog.records if record.exc_info] == []


def test_clients_do_not_wait_for_a_second_server_in_a_home() -> None:
    with home_with_cluster() as home:
        settings = load_settings(home=home)
        was_starting: list[bool] = []

        class Watched(Server):
            def _bring_to_head(self) -> None:
                was_starting.append(is_starting(Home(home)))
                super()._bring_to_head()

        with Watched(settings) as first:
            wait_until(lambda: first.is_leader)
            assert was_starting[0]
            was_starting.clear()
            with Watched(settings):
                assert was_starting[0] is False
