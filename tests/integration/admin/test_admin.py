"""Admin itself: the broker that it uses, the actor that it records, and the errors that it raises."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqdb_client import Admin, Message, Producer, errors
from tests.fixtures.postgres import Database, with_parts


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        yield admin


@pytest.fixture
def of_two(database: Database, second_database: Database) -> Iterator[Admin]:
    second_database.connect().execute("UPDATE mqdb.broker SET broker_name = 'broker-b'")
    with Admin(f"broker-a={database.dsn};broker-b={second_database.dsn}") as admin:
        yield admin


def test_the_settings_of_the_environment_say_which_broker(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQDB_DSN", database.dsn)

    with Admin() as admin:
        assert admin.name == "broker-a"
        assert [config.name for config in admin.topics.list() if config.name == "TBW102"] == ["TBW102"]


def test_without_a_broker_in_the_home_there_is_nothing_to_administer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MQDB_DSN", raising=False)
    monkeypatch.setenv("MQDB_HOME", str(tmp_path))

    with pytest.raises(errors.BrokerUnavailable):
        Admin()


def test_several_brokers_are_asked_by_name_or_each(of_two: Admin) -> None:
    of_two.on("broker-b").topics.create("orders", queues=2)

    answers = of_two.on_each(lambda broker: broker.topics.show("orders"))

    assert {name: len(found.queues) for name, found in answers.results.items()} == {"broker-b": 2}
    assert {name: type(error) for name, error in answers.failures.items()} == {"broker-a": errors.TopicNotFound}
    answers.without(errors.TopicNotFound).check()
    with pytest.raises(errors.SomeBrokersFailed, match=r"broker-a: topic 'orders' does not exist.*; done on broker-b"):
        answers.check()


def test_a_question_to_several_brokers_at_once_is_refused(of_two: Admin) -> None:
    with pytest.raises(errors.ParameterInvalid, match="several brokers, broker-a, broker-b"):
        of_two.topics.list()


def test_an_unknown_broker_is_refused_with_the_names_of_those_there_are(of_two: Admin) -> None:
    with pytest.raises(errors.ParameterInvalid, match="the brokers are: broker-a, broker-b"):
        of_two.on("broker-c")


def test_a_database_of_another_name_is_refused(database: Database) -> None:
    with Admin(f"broker-x={database.dsn}") as admin, pytest.raises(errors.BrokerMisnamed):
        admin.topics.list()


def test_a_database_that_is_not_there_is_a_typed_error(database: Database) -> None:
    with Admin(with_parts(database.dsn, database="nowhere")) as admin, pytest.raises(errors.DatabaseMissing):
        admin.topics.list()


@pytest.mark.parametrize("read", [lambda admin: admin.topics.list(), lambda admin: admin.retention.segments()])
def test_it_works_on_after_its_connection_was_lost(
    admin: Admin, database: Database, read: Callable[[Admin], list[object]]
) -> None:
    read(admin)
    # The owner may not end an autovacuum worker.
    of_others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    database.connect().execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_others}".encode())

    with pytest.raises(errors.BrokerUnavailable):
        read(admin)

    assert read(admin)


def test_many_threads_may_use_it_at_a_time(admin: Admin) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(admin.topics.list()))) for _ in range(16)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 16


def test_without_a_server_what_was_just_sent_counts(admin: Admin, database: Database) -> None:
    admin.topics.create("orders", queues=1)
    admin.topics.create("narrow", read_queues=1, write_queues=2)
    admin.groups.update("billing")
    admin.offsets.reset("billing", "orders", 0)
    counts: list[Callable[[], int]] = [
        lambda: admin.topics.show("orders").queues[0].max_offset,
        lambda: admin.groups.show("billing").progress[0].lag,
        lambda: admin.groups.topics("billing")[0].lag,
        lambda: admin.groups.list()[0].lag,
        lambda: admin.offsets.show("billing")[0].lag,
    ]

    with Producer("shop", database.dsn) as producer:
        for number, count in enumerate(counts, start=1):
            producer.send(Message("orders", "an order"))
            assert count() == number
        for _ in range(2):  # one to each queue
            producer.send(Message("narrow", "a message"))
        assert [each.messages for each in admin.topics.unread("narrow")] == [1]
        producer.send(Message("orders", "an order", delay_level=18))
        assert sum(each.waiting for each in admin.delays.list()) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads
def test_a_forked_child_has_connections_of_its_own(admin: Admin) -> None:
    def session() -> int:
        with admin._access.connected() as connection:
            return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    before = session()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, str(session()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)

    with os.fdopen(reading) as told:
        of_child = told.read()
    assert of_child
    assert int(of_child) != before
    assert session() == before
    assert admin.topics.list()


def test_no_broker_at_all_is_no_word_for_all_of_them(admin: Admin) -> None:
    assert admin.chosen([]) == ()
    assert admin.on_each(lambda broker: broker.topics.create("everywhere"), []).results == {}
