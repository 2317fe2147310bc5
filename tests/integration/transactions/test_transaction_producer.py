"""The transaction producer: the listener's messages and answers, and the fate of the message."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.common.durability import Durability
from mqdb.common.topic import HALF_TOPIC
from mqdb.common.unique_id import format_unique_id
from mqdb.errors import BodyEmpty, IllegalState, ParameterInvalid
from mqdb_client import LocalTransactionState, Message, SendStatus, TransactionProducer
from tests.fixtures.broker import drop_topic, topic
from tests.fixtures.delay import delivered, records
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import TwoBrokers, refuse_appends, wait_connected
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, UNKNOWN, Asked, Checker, StartProducer, halves
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

ORDER = Message("orders", "half", "paid", "order-17", {"a": "b"})


def test_the_listener_runs_when_the_message_is_stored_and_before_anybody_sees_it(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    seen = []

    class Listener(Asked):
        def execute_local_transaction(self, message: Any, argument: Any) -> Any:
            seen.append((delivered(broker, HALF_TOPIC), delivered(broker)))
            return super().execute_local_transaction(message, argument)

    listener = Listener(COMMIT)
    result = transactional_producer(listener).send_in_transaction(ORDER, 17)

    ((message, argument),) = listener.prepared
    assert seen == [(["half"], [])]
    assert (message.topic, message.body, message.tag, message.keys) == ("orders", b"half", "paid", ("order-17",))
    assert (message.message_id, argument) == (result.message_id, 17)


def test_a_commit_delivers_the_message(broker: Connection, transactional_producer: StartProducer) -> None:
    topic(broker)

    result = transactional_producer(Asked(COMMIT)).send_in_transaction(ORDER)

    assert (result.local_transaction_state, result.status) == (COMMIT, SendStatus.SEND_OK)
    assert result.transaction_id == result.message_id
    assert result.queue.topic == "orders"
    (copy,) = records(broker)
    assert format_unique_id(copy["msg_id"]) == result.message_id


def test_a_rollback_does_not(broker: Connection, transactional_producer: StartProducer) -> None:
    topic(broker)

    result = transactional_producer(Asked(ROLLBACK)).send_in_transaction(ORDER)

    assert result.local_transaction_state is ROLLBACK
    assert [half["state"] for half in halves(broker)] == ["ROLLED_BACK"]
    assert delivered(broker) == []


NO_IDEA = RuntimeError("no idea")


@pytest.mark.parametrize("answer", usually(None, NO_IDEA, of=[None, UNKNOWN, "COMMIT_MESSAGE", NO_IDEA]), ids=repr)
def test_who_does_not_say_what_has_become_of_it_is_asked_later(
    broker: Connection, transactional_producer: StartProducer, answer: object
) -> None:
    topic(broker)
    listener = Asked(answer, COMMIT)

    result = transactional_producer(listener).send_in_transaction(ORDER)

    assert result.local_transaction_state is UNKNOWN
    assert halves(broker) == []
    Checker(broker).after(7 * SECOND)
    wait_until(lambda: delivered(broker) == ["half"])
    (message,) = listener.checks
    assert message.message_id == result.message_id


@pytest.mark.parametrize(
    ("answer", "state", "bodies"),
    [(COMMIT, "COMMITTED", ["half"]), (ROLLBACK, "ROLLED_BACK", [])],
    ids=["commit", "rollback"],
)
def test_the_answer_to_a_check_ends_the_message(
    broker: Connection, transactional_producer: StartProducer, answer: object, state: str, bodies: list[str]
) -> None:
    topic(broker)
    transactional_producer(Asked(UNKNOWN, answer)).send_in_transaction(ORDER)

    Checker(broker).after(7 * SECOND)

    wait_until(lambda: [half["state"] for half in halves(broker)] == [state])
    assert delivered(broker) == bodies


@pytest.mark.parametrize("answer", usually(UNKNOWN, of=[None, UNKNOWN, NO_IDEA]), ids=repr)
def test_an_answer_that_says_nothing_is_taken_for_one(
    broker: Connection, transactional_producer: StartProducer, answer: object
) -> None:
    topic(broker)
    listener = Asked(UNKNOWN, answer)
    transactional_producer(listener).send_in_transaction(ORDER)
    checker = Checker(broker)

    for count in (1, 2):
        checker.after(31 * SECOND)
        wait_until(lambda: [half["check_client"] for half in halves(broker)] == [None])
        assert len(listener.checks) == count


@pytest.mark.of_threads("in a task sys.exit ends the loop")
def test_a_check_that_calls_sys_exit_is_followed_by_others(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    listener = Asked(UNKNOWN, SystemExit("no idea"))
    transactional_producer(listener).send_in_transaction(ORDER)
    checker = Checker(broker)

    for count in (1, 2):
        checker.after(31 * SECOND)
        listener.wait_for_checks(count)


def test_a_send_without_its_standby_is_rolled_back_and_runs_nothing(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    listener = Asked(COMMIT)

    result = transactional_producer(listener, durability=Durability.SYNC_MASTER).send_in_transaction(ORDER)

    assert (result.status, result.local_transaction_state) == (SendStatus.SLAVE_NOT_AVAILABLE, ROLLBACK)
    assert listener.prepared == []
    assert [half["state"] for half in halves(broker)] == ["ROLLED_BACK"]


def test_many_checks_at_once_are_all_answered(broker: Connection, transactional_producer: StartProducer) -> None:
    topic(broker)
    producer = transactional_producer(Asked(UNKNOWN, COMMIT))
    for _ in range(50):
        producer.send_in_transaction(ORDER)

    Checker(broker).after(7 * SECOND)

    wait_until(lambda: len(delivered(broker)) == 50)


def test_an_answer_that_is_refused_keeps_no_other_from_its_message(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    topic(broker, "gone")
    listener = Asked(UNKNOWN, COMMIT)
    producer = transactional_producer(listener)
    producer.send_in_transaction(Message("gone", "for nobody"))
    producer.send_in_transaction(ORDER)
    drop_topic(broker, "gone")

    Checker(broker).after(7 * SECOND)

    wait_until(lambda: [half["state"] for half in halves(broker)] == ["PREPARED", "COMMITTED"])
    wait_until(lambda: [half["check_client"] for half in halves(broker)] == [None, None])
    assert len(listener.checks) == 2


def test_two_functions_are_a_listener(broker: Connection, database: Database) -> None:
    topic(broker)
    listener = Asked(COMMIT)
    producer = TransactionProducer(
        "senders",
        dsn=database.dsn,
        execute_local_transaction=listener.execute_local_transaction,
        check_local_transaction=listener.check_local_transaction,
    )

    with producer:
        producer.send_in_transaction(ORDER)

    assert delivered(broker) == ["half"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"listener": object()},
        {"execute_local_transaction": print},
        {"listener": Asked(), "check_local_transaction": print},
        {"listener": Asked},
        {"execute_local_transaction": lambda message: COMMIT, "check_local_transaction": print},
    ],
    ids=["none", "no listener", "one function", "both", "a class", "too few arguments"],
)
def test_without_a_listener_there_is_no_producer(database: Database, arguments: dict[str, Any]) -> None:
    with pytest.raises(ParameterInvalid, match=r"listener|\(message, argument\)"):
        TransactionProducer("senders", dsn=database.dsn, **arguments)


DELAYS: dict[str, dict[str, Any]] = {
    "level": {"delay_level": 3},
    "delay": {"delay": timedelta(hours=1)},
    "time": {"deliver_at": 4_000_000_000_000},
}


@pytest.mark.parametrize("asked", usually("level", "delay", of=DELAYS))
def test_the_commit_delivers_whatever_delay_was_asked_for(
    broker: Connection, transactional_producer: StartProducer, asked: str
) -> None:
    topic(broker)

    transactional_producer(Asked(COMMIT)).send_in_transaction(Message("orders", "half", **DELAYS[asked]))

    (copy,) = records(broker)
    assert not [name for name in copy["properties"] if name == "DELAY" or name.startswith("TIMER")]


def test_a_bad_message_is_refused_before_anything_runs(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    listener = Asked(COMMIT)

    with pytest.raises(BodyEmpty):
        transactional_producer(listener).send_in_transaction(Message("orders", b""))

    assert listener.prepared == []


def test_a_send_that_fails_runs_nothing(
    broker: Connection, database: Database, transactional_producer: StartProducer
) -> None:
    topic(broker)
    listener = Asked(COMMIT)
    producer = transactional_producer(listener)
    refuse_appends(database)

    with pytest.raises(Exception, match="refused by the test"):
        producer.send_in_transaction(ORDER)

    assert listener.prepared == []


def test_the_end_goes_to_the_broker_that_has_the_message(
    two_brokers: TwoBrokers, transactional_producer: StartProducer
) -> None:
    for each in (two_brokers.a, two_brokers.b):
        create_topic(each.connect(), "orders")
    producer = transactional_producer(Asked(COMMIT), dsn=two_brokers.dsn)
    wait_connected(producer)

    for _ in range(8):
        producer.send_in_transaction(Message("orders", "half"))

    ended = "SELECT count(*) FROM mqdb.half_message WHERE state = 'COMMITTED'"
    counts = [each.connect().execute(ended).fetchone() for each in (two_brokers.a, two_brokers.b)]
    assert sum(count[0] for count in counts if count) == 8
    assert all(count and count[0] for count in counts)


def test_an_end_that_is_lost_is_asked_for(
    broker: Connection, database: Database, transactional_producer: StartProducer, caplog: pytest.LogCaptureFixture
) -> None:
    topic(broker)
    listener = Asked(COMMIT, COMMIT)
    producer = transactional_producer(listener, timeout="500ms")
    locker = database.connect(autocommit=False)
    locker.execute("LOCK TABLE mqdb.half_message")

    result = producer.send_in_transaction(ORDER, timeout=timedelta(seconds=30))
    # Where its request to cancel comes late, the END still waits in the server.
    database.connect().execute(
        """SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
           WHERE NOT granted AND relation = 'mqdb.half_message'::regclass"""
    )
    locker.rollback()

    assert result.local_transaction_state is COMMIT
    assert "the broker will ask" in caplog.text
    assert delivered(broker) == []
    Checker(broker).after(7 * SECOND)
    wait_until(lambda: delivered(broker) == ["half"])


@pytest.mark.of_threads("its listener is no task, but a thread that a task waits for")
def test_a_listener_cannot_shut_its_producer_down(broker: Connection, transactional_producer: StartProducer) -> None:
    topic(broker)
    caught: list[BaseException] = []
    producers: list[TransactionProducer] = []

    class Listener(Asked):
        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            try:
                producers[0].shutdown()
            except IllegalState as error:
                caught.append(error)
            return COMMIT

    producers.append(transactional_producer(Listener(UNKNOWN)))
    producers[0].send_in_transaction(ORDER)
    Checker(broker).after(7 * SECOND)

    wait_until(lambda: delivered(broker) == ["half"])
    assert "call shutdown() in another thread" in str(caught[0])


def test_what_was_asked_before_a_producer_came_is_answered_when_it_comes(
    broker: Connection, transactional_producer: StartProducer
) -> None:
    topic(broker)
    first = transactional_producer(Asked(UNKNOWN))
    first.send_in_transaction(ORDER)
    first.shutdown()
    checker = Checker(broker)
    assert checker.after(7 * SECOND).postponed == 1

    transactional_producer(Asked(UNKNOWN, COMMIT))
    checker.after(31 * SECOND)

    wait_until(lambda: delivered(broker) == ["half"])
