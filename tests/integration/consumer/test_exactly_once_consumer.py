"""A push consumer whose listener receives a connection: the listener's writes and the offset are one transaction."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from mqdb.common.property import FailureProperty
from mqdb.common.topic import dlq_topic
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.engine import driver
from mqdb_client import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    Producer,
)
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyContext
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import Inbox
from tests.fixtures.consumers import Member as PlainMember
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import dead_letters, scheduled
from tests.fixtures.transactional import Ledger, Messages, TransactionalMember
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

both_modes = pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def send(broker: Connection, count: int, queues: int = 1) -> list[int]:
    """Send messages 0 to `count` - 1 to the queues of a new topic in turn; returns the keys of the queues."""
    route = topic(broker, queues=queues)
    for queue_id in range(queues):
        append(broker, route, *(str(number) for number in range(queue_id, count, queues)), queue_id=queue_id)
    return list(route.queue_keys)


def failing_once(*bodies: str, how: Callable[[Messages, Connection], Any]) -> Callable[[Messages, Connection], Any]:
    """Runs `how` in the first call with one of these messages, and accepts all other calls."""
    left = set(bodies)

    def then(messages: Messages, connection: Connection) -> Any:
        hit = left & {message.body.decode() for message in messages}
        left.difference_update(hit)
        return how(messages, connection) if hit else None

    return then


# -- success ------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("batch", usually(8, of=[1, 8]))
def test_each_message_is_written_once_and_the_offset_with_it(
    broker: Connection, transactional_member: TransactionalMember, orderly: bool, batch: int
) -> None:
    keys = send(broker, 100, queues=4)
    ledger = Ledger(broker, orderly=orderly)

    consumer = transactional_member(ledger, orderly=orderly, consume_message_batch_max_size=batch)
    ledger.wait_for(100)
    consumer.shutdown()

    assert sorted(ledger.bodies, key=int) == numbers(100)
    assert max(map(len, ledger.calls)) == batch
    assert committed_offsets(broker, "readers", keys) == dict.fromkeys(keys, 25)
    assert broker.scalar(text("SELECT count(*) FROM mqdb.offset_commit")) == 0


def test_a_session_may_commit_what_the_transaction_decides(
    broker: Connection, transactional_member: TransactionalMember
) -> None:
    """A SQLAlchemy ORM session may commit what the transaction decides, as in a function that receives a connection."""
    send(broker, 3)

    def in_session(_messages: Messages, connection: Connection) -> None:
        with Session(connection) as session:
            session.execute(text("INSERT INTO ledger (body) VALUES ('of the session')"))
            session.commit()

    ledger = Ledger(broker, in_session)

    transactional_member(ledger, consume_message_batch_max_size=3)
    ledger.wait_for(4)

    assert ledger.bodies == ["0", "1", "2", "of the session"]


def test_a_listener_chooses_the_isolation_of_its_transaction(
    broker: Connection, transactional_member: TransactionalMember
) -> None:
    send(broker, 1)
    found: list[Any] = []

    def listener(_messages: Messages, connection: Connection) -> ConsumeConcurrentlyStatus:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
        found.append(connection.scalar(text("SHOW transaction_isolation")))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = transactional_member(listener)
    wait_until(lambda: found)
    consumer.shutdown()

    assert found == ["serializable"]


def test_what_it_sends_arrives_once_also_when_it_fails_first(
    served: Connection, database: Database, transactional_member: TransactionalMember, member: PlainMember
) -> None:
    send(served, 20)
    topic(served, "invoices")
    inbox = Inbox()
    member(inbox, group="accountants", topic="invoices")
    with Producer("senders", database.dsn) as producer:

        def then(messages: Messages, connection: Connection) -> None:
            for message in messages:
                producer.send(Message("invoices", message.body), connection=connection)
            fail(messages, connection)

        fail = failing_once("3", "11", how=lambda _messages, _connection: 1 / 0)
        ledger = Ledger(served, then)
        transactional_member(ledger, consume_message_batch_max_size=4)
        ledger.wait_for(20)
        inbox.wait_for(20)

    assert sorted(ledger.bodies, key=int) == sorted(inbox.bodies, key=int) == numbers(20)


# -- failure ------------------------------------------------------------------------------------


def says_later(*_: Any) -> Any:
    return LATER


def says_yes(*_: Any) -> Any:
    return "yes"


def divides_by_zero(*_: Any) -> Any:
    return 1 / 0


@pytest.mark.parametrize("how", usually(says_later, divides_by_zero, of=[says_later, says_yes, divides_by_zero]))
def test_what_fails_is_rolled_back_and_comes_again_once(
    served: Connection, transactional_member: TransactionalMember, how: Callable[..., Any]
) -> None:
    send(served, 10)
    ledger = Ledger(served, failing_once("4", how=how))

    transactional_member(ledger, consume_message_batch_max_size=5)
    ledger.wait_for(10)

    assert sorted(ledger.bodies, key=int) == numbers(10)
    # All of its batch: a transaction is for all or none.
    assert ledger.reconsume_times == {str(number): int(number < 5) for number in range(10)}
    assert len(scheduled(served)) == 5


def test_no_answer_is_no_success(served: Connection, transactional_member: TransactionalMember) -> None:
    send(served, 1)

    def listener(messages: Messages, connection: Connection) -> Any:
        answer = None  # as of a path through a function that has forgotten one
        ledger(messages, connection)
        return answer

    ledger = Ledger(served)
    transactional_member(listener, max_reconsume_times=1)
    wait_until(lambda: dead_letters(served))

    assert [letter[:2] for letter in dead_letters(served)] == [("0", 2)]
    assert ledger.bodies == []


def test_a_listener_says_how_its_messages_come_again(
    served: Connection, transactional_member: TransactionalMember
) -> None:
    send(served, 3)

    def listener(_messages: Messages, _connection: Connection, context: ConsumeConcurrentlyContext) -> Any:
        context.delay_level_when_next_consume = -1
        return LATER

    consumer = transactional_member(listener)
    wait_until(lambda: len(dead_letters(served)) == 3)
    consumer.shutdown()

    assert [letter[0] for letter in dead_letters(served)] == numbers(3)
    assert scheduled(served) == []


def test_in_order_what_fails_comes_again_before_all_behind_it(
    broker: Connection, transactional_member: TransactionalMember
) -> None:
    send(broker, 10)
    answers = iter([None, SUSPEND, ConsumeOrderlyStatus.ROLLBACK])
    ledger = Ledger(broker, lambda *_: next(answers, None), orderly=True)

    transactional_member(ledger, orderly=True, consume_message_batch_max_size=2)
    ledger.wait_for(10)

    assert ledger.bodies == numbers(10)
    assert ledger.calls[1:4] == [["2", "3"]] * 3
    assert ledger.reconsume_times["2"] == 2
    assert scheduled(broker) == []


def test_in_order_what_fails_too_often_is_a_dead_letter_once(
    broker: Connection, transactional_member: TransactionalMember
) -> None:
    send(broker, 4)
    hopeless = "1"

    def then(messages: Messages, _connection: Connection) -> Any:
        return SUSPEND if messages[0].body.decode() == hopeless else None

    ledger = Ledger(broker, then, orderly=True)

    transactional_member(ledger, orderly=True, max_reconsume_times=2)
    ledger.wait_for(3)

    assert ledger.bodies == ["0", "2", "3"]
    assert ledger.calls == [["0"], ["1"], ["1"], ["1"], ["2"], ["3"]]
    wait_until(lambda: [letter[:2] for letter in dead_letters(broker)] == [(hopeless, 3)])


@pytest.mark.parametrize("sqlstate", usually("40P01", of=["40001", "40P01"]), ids=["serialization failure", "deadlock"])
def test_a_transaction_that_met_others_is_tried_again_at_once(
    broker: Connection, transactional_member: TransactionalMember, sqlstate: str
) -> None:
    send(broker, 2)
    tries: Counter[str] = Counter()

    def then(messages: Messages, connection: Connection) -> None:
        body = messages[0].body.decode()
        tries[body] += 1
        if tries[body] <= 3:
            connection.execute(text(f"DO $$ BEGIN RAISE 'so it goes' USING errcode = '{sqlstate}'; END $$"))

    ledger = Ledger(broker, then)

    transactional_member(ledger)
    ledger.wait_for(2)

    assert ledger.bodies == ["0", "1"]
    assert scheduled(broker) == []


def test_a_transaction_that_always_meets_others_has_failed(
    served: Connection, transactional_member: TransactionalMember
) -> None:
    send(served, 1)

    def listener(_messages: Messages, connection: Connection) -> ConsumeConcurrentlyStatus:
        connection.execute(text("DO $$ BEGIN RAISE 'so it goes' USING errcode = '40001'; END $$"))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    transactional_member(listener, max_reconsume_times=0)
    wait_until(lambda: dead_letters(served))

    assert len(dead_letters(served)) == 1


# -- a listener that ends the transaction itself ------------------------------------------------


def failures(connection: Connection) -> list[tuple[str, str]]:
    """The exception and the message of each dead letter."""
    statement = "SELECT properties ->> :exception, properties ->> :message FROM mqdb.message WHERE topic = :topic"
    names = {"exception": FailureProperty.EXCEPTION, "message": FailureProperty.MESSAGE}
    rows = connection.execute(text(statement), names | {"topic": dlq_topic("readers")})
    return [tuple(row) for row in rows]


def in_sql(_messages: Messages, connection: Connection) -> None:
    connection.execute(text("COMMIT"))


def and_another_one(messages: Messages, connection: Connection) -> None:
    in_sql(messages, connection)
    connection.execute(text("SELECT 1"))


def hiding_a_failure(_messages: Messages, connection: Connection) -> None:
    with pytest.raises(Exception, match="division by zero"):
        connection.execute(text("SELECT 1 / 0"))


ENDS: dict[str, tuple[Callable[[Messages, Connection], Any], str, bool]] = {
    "commit()": (lambda _messages, connection: connection.commit(), "tried to commit", False),
    "rollback()": (lambda _messages, connection: connection.rollback(), "rolled back", False),
    "close()": (lambda _messages, connection: connection.close(), "closed the connection of", False),
    "the driver's commit()": (lambda _messages, connection: driver(connection).commit(), "ended", True),
    "COMMIT": (in_sql, "ended", True),
    "COMMIT, BEGIN": (and_another_one, "replaced", True),
    "failed statement": (hiding_a_failure, "let a statement fail in", False),
}


@pytest.mark.parametrize("end", usually("commit()", "close()", "COMMIT, BEGIN", "failed statement", of=ENDS))
def test_a_listener_that_does_not_leave_the_end_to_the_consumer_has_failed(
    served: Connection, transactional_member: TransactionalMember, end: str
) -> None:
    """A listener that ends the transaction itself has failed: its messages are not consumed, and the failure says why.

    The listener's own commits cannot be undone.
    """
    how, what, written = ENDS[end]
    send(served, 2)
    ledger = Ledger(served, failing_once("0", how=how))

    transactional_member(ledger, max_reconsume_times=0)
    wait_until(lambda: dead_letters(served) and "1" in ledger.bodies)

    [(exception, message)] = failures(served)
    assert exception == "mqdb.errors.TransactionEnded"
    assert message.startswith(f"the listener has {what} the transaction that was passed to it")
    assert ledger.bodies == (["0", "1"] if written else ["1"])


def set_ack_index(_messages: Messages, _connection: Connection, context: Any) -> ConsumeConcurrentlyStatus:
    context.ack_index = 0
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def set_auto_commit(_messages: Messages, _connection: Connection, context: Any) -> ConsumeOrderlyStatus:
    context.auto_commit = False
    return ConsumeOrderlyStatus.SUCCESS


@pytest.mark.parametrize(
    ("listener", "orderly", "name"), [(set_ack_index, False, "ack_index"), (set_auto_commit, True, "auto_commit")]
)
def test_what_no_transaction_can_do_is_refused(
    served: Connection, transactional_member: TransactionalMember, listener: Any, orderly: bool, name: str
) -> None:
    send(served, 1)

    transactional_member(listener, orderly=orderly, max_reconsume_times=0)
    wait_until(lambda: dead_letters(served))

    [(exception, message)] = failures(served)
    assert exception == "mqdb.errors.ParameterInvalid"
    assert name in message
