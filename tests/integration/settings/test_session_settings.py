"""Settings of a role, a database or a DSN: which of them apply in mqdb's sessions, and that none breaks a send."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text

from mqdb.broker.consumers.pull import pull
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.log.query import broker_info
from mqdb.common.message import MessageQueue
from mqdb.errors import BrokerUnavailable, ParameterInvalid
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store.engine import connected, create_engine, driver, transaction
from mqdb_client import Admin, Message, Producer
from tests.fixtures.broker import append, dispatch_all, request, topic
from tests.fixtures.dead_letters import FAILURE, create_group
from tests.fixtures.joined_sends import url_of
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.producers import producer_of, stored_bodies
from tests.fixtures.roles import MakeRole
from tests.fixtures.transactions import COMMIT, UNKNOWN, Asked, StartProducer
from tests.fixtures.variants import usually

TAG = "Größe-日本"


def stored_tags(database: Database) -> list[str]:
    with psycopg.connect(database.dsn, client_encoding="utf8") as connection:
        return [row[0] for row in connection.execute("SELECT tags FROM mqdb.commit_log ORDER BY log_pos")]


SETTINGS = [
    ("DateStyle", "German"),
    ("DateStyle", "SQL, DMY"),
    ("client_encoding", "latin1"),
    ("client_encoding", "sql_ascii"),
]
every_setting = pytest.mark.parametrize(("setting", "value"), usually(SETTINGS[0], SETTINGS[2], of=SETTINGS))


def test_half_messages_are_asked_about_whatever_the_style_of_intervals(
    database: Database, transactional_producer: StartProducer
) -> None:
    database.set_default("IntervalStyle", "iso_8601")
    listener = Asked(UNKNOWN, COMMIT)
    quick = {"transaction_timeout": "100ms", "transaction_check_interval": "100ms"}

    with Server(load_settings(dsn=database.dsn, **quick)), Admin(database.dsn) as admin:
        admin.topics.create("orders")
        transactional_producer(listener).send_in_transaction(Message("orders", "x"))
        listener.wait_for_checks(1)


def test_a_server_starts_with_delay_levels_whatever_the_style_of_intervals(database: Database) -> None:
    database.set_default("IntervalStyle", "iso_8601")

    with Server(load_settings(dsn=database.dsn, message_delay_level="1s 1m")), Admin(database.dsn) as admin:
        delays = [each.delay for each in admin.delays.list() if each.delay is not None]
    assert delays == [timedelta(seconds=1), timedelta(minutes=1)]


@every_setting
def test_a_producer_sends_whatever_a_database_sets(database: Database, setting: str, value: str) -> None:
    database.set_default(setting, value)

    with producer_of(database.dsn) as producer:
        sent = producer.send(Message("orders", "x", tag=TAG))
        found = producer.outcome(sent.message_id)

    assert found is not None
    assert found.queue == sent.queue
    assert stored_tags(database) == [TAG]


@every_setting
@pytest.mark.parametrize("prepared", [True, False])
def test_an_engine_reads_times_and_text_whatever_a_database_sets(
    database: Database, setting: str, value: str, prepared: bool
) -> None:
    database.set_default(setting, value)
    engine = create_engine(database.dsn, prepared=prepared)

    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT now(), '{TAG}'")).one()[1] == TAG
        assert broker_info(connection).broker_name == "broker-a"
    engine.dispose()


def test_a_session_that_transaction_timeout_has_ended_is_a_connection_that_broke(database: Database) -> None:
    if database.connect().info.server_version < 170_000:
        pytest.skip("PostgreSQL has had transaction_timeout since 17")
    database.set_default("transaction_timeout", "300ms")

    with (
        pytest.raises(BrokerUnavailable, match="transaction timeout"),
        connected(database.dsn, "test") as connection,
        transaction(connection),
    ):
        connection.execute(text("SELECT pg_sleep(30)"))


def test_a_role_that_does_not_own_the_broker_sends_whatever_it_says_of_row_security(
    database: Database, role: MakeRole
) -> None:
    guest = Database(role("sender"))
    with Admin(database.dsn) as admin:
        admin.topics.create("orders")
        admin.acl.grant("sender", send=["orders"])
    database.connect_as_superuser().execute("ALTER ROLE sender SET row_security TO off")

    with producer_of(guest.dsn) as producer:
        producer.send(Message("orders", "x"))

    assert stored_bodies(database) == ["x"]


def test_times_have_the_zone_utc_whatever_the_zone_of_the_database(database: Database) -> None:
    database.set_default("TimeZone", "Asia/Kathmandu")

    with connected(database.dsn, "test") as connection:
        assert str(connection.scalar(text("SELECT timestamptz '2026-07-14 09:30+02'"))) == "2026-07-14 07:30:00+00:00"


# -- a connection of the caller's -------------------------------------------------------------


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    create_topic(database.connect(), "orders", 4)
    with producer_of(database.dsn) as producer:
        yield producer


def test_text_that_the_callers_encoding_has_not_got_is_refused_and_the_transaction_goes_on(
    database: Database, producer: Producer
) -> None:
    connection = database.connect(autocommit=False, client_encoding="latin1")
    producer.send(Message("orders", "first", tag="Größe"), connection=connection)

    with pytest.raises(ParameterInvalid, match=r"client_encoding .*1'.*cannot be sent '日本'.*SET client_encoding"):
        producer.send(Message("orders", "second", tag=TAG), connection=connection)
    connection.execute("SET client_encoding TO 'UTF8'")
    producer.send(Message("orders", "third", tag=TAG), connection=connection)
    connection.commit()

    assert stored_bodies(database) == ["first", "third"]
    assert stored_tags(database) == ["Größe", TAG]


def test_the_same_of_sqlalchemy_and_a_batch(database: Database, producer: Producer) -> None:
    app = sqlalchemy.create_engine(url_of(database), connect_args={"client_encoding": "latin1"})
    with app.connect() as connection:
        connection.execute(text("CREATE TEMP TABLE mine ON COMMIT DROP AS SELECT 17 AS id"))

        with pytest.raises(ParameterInvalid, match="SET client_encoding"):
            producer.send_batch([Message("orders", "x"), Message("orders", "y", tag=TAG)], connection=connection)

        assert connection.scalar(text("SELECT id FROM mine")) == 17
        connection.commit()
    app.dispose()
    assert stored_bodies(database) == []


def test_a_connection_of_the_callers_without_an_encoding_is_refused_and_stays_usable(
    database: Database, producer: Producer
) -> None:
    connection = database.connect(autocommit=False, client_encoding="sql_ascii")

    with pytest.raises(ParameterInvalid, match=r"SQL_ASCII.*SET client_encoding"):
        producer.send(Message("orders", "x"), connection=connection)
    connection.execute("SET client_encoding TO 'UTF8'")
    producer.send(Message("orders", "y"), connection=connection)
    connection.commit()

    assert stored_bodies(database) == ["y"]


# -- what a DSN says --------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [True, False])
def test_the_options_of_a_dsn_hold(database: Database, prepared: bool) -> None:
    engine = create_engine(f"{database.dsn}&options=-c%20work_mem%3D7MB%20-c%20lock_timeout%3D9s", prepared=prepared)

    with engine.connect() as connection:
        assert connection.scalar(text("SHOW work_mem")) == "7MB"
        assert connection.scalar(text("SHOW lock_timeout")) == "9s"
    engine.dispose()


def test_what_mqdb_relies_on_comes_after_the_options_of_a_dsn(database: Database) -> None:
    theirs = "plan_cache_mode=auto", "default_transaction_isolation=serializable", "DateStyle=German"
    options = "%20".join(f"-c%20{each.replace('=', '%3D')}" for each in theirs)
    engine = create_engine(f"{database.dsn}&options={options}&client_encoding=latin1", indexes_only=True)

    with engine.connect() as connection:
        assert connection.scalar(text("SHOW plan_cache_mode")) == "force_generic_plan"
        assert connection.scalar(text("SHOW default_transaction_isolation")) == "read committed"
        assert str(connection.scalar(text("SHOW DateStyle"))).startswith("ISO")
        assert connection.scalar(text("SHOW client_encoding")) == "UTF8"
        assert connection.scalar(text("SHOW enable_seqscan")) == "off"
    engine.dispose()


def test_limits_of_the_way_there_are_those_of_the_dsn_and_mqdbs_where_it_has_none(database: Database) -> None:
    engine = create_engine(f"{database.dsn}&connect_timeout=7&keepalives_idle=11")

    with engine.connect() as connection:
        parameters = driver(connection).info.get_parameters()
    engine.dispose()

    assert parameters["connect_timeout"] == "7"
    assert parameters["keepalives_idle"] == "11"
    assert parameters["keepalives_interval"] == "3"


def test_a_pull_and_what_comes_again_are_written_whatever_the_text_of_arrays(database: Database) -> None:
    database.set_default("array_nulls", "off")
    engine = create_engine(database.dsn, prepared=False)

    with engine.connect() as connection:
        route = topic(connection)
        [log_pos] = append(connection, route, "x")
        dispatch_all(connection)
        create_group(connection)
        [pulled], _ = pull(connection, [request(route)])
        where = MessageQueue("orders", "broker-a", 0)
        send_back(connection, "billing", [SendBackRequest(log_pos, where, 0, FAILURE)])
    engine.dispose()

    assert [each.body for each in pulled.messages] == [b"x"]
    assert stored_bodies(database) == ["x", "x"]


# -- functions that run in sessions of others -------------------------------------------------


def test_the_body_of_a_function_means_the_same_whatever_backslashes_mean(database: Database) -> None:
    """A function's body has the same meaning for any backslash setting.

    PostgreSQL parses the text of a function according to the session's standard_conforming_strings.
    """
    connection = database.connect(options="-c standard_conforming_strings=off")
    notices: list[str] = []
    connection.add_notice_handler(lambda notice: notices.append(f"{notice.message_primary}: {notice.context}"))

    for validator, function in connection.execute(
        """SELECT l.lanvalidator::regproc::text, p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
           WHERE p.pronamespace = 'mqdb'::regnamespace"""
    ).fetchall():
        connection.execute(f"SELECT {validator}({function})")

    assert notices == []


def test_a_segment_is_added_whatever_the_quotes_of_names(database: Database) -> None:
    connection = database.connect(options="-c quote_all_identifiers=on")

    [(number,)] = connection.execute("SELECT mqdb.add_segment(1000)").fetchall()

    policies = "SELECT count(DISTINCT polrelid) FROM pg_policy WHERE polrelid IN (%s::regclass, %s::regclass)"
    tables = [f"mqdb.commit_log_{number}", f"mqdb.queue_run_{number}"]
    assert connection.execute(policies, tables).fetchone() == (2,)


def test_a_batch_without_tags_has_none_whatever_the_text_of_arrays(database: Database, producer: Producer) -> None:
    connection = database.connect(autocommit=False, options="-c array_nulls=off")

    producer.send_batch([Message("orders", "x"), Message("orders", "y")], connection=connection)
    connection.commit()

    assert database.rows("SELECT tags, keys FROM mqdb.commit_log") == [(None, None)] * 2
