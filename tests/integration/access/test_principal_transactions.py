"""Half messages of roles that do not own the broker: each role reaches only its own half messages."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.broker.transactions.transactions import EndTransaction, Resolution, end
from mqdb.common.unique_id import parse_unique_id
from mqdb.store.engine import create_engine
from mqdb_client import Admin, LocalTransactionState, Message, TransactionProducer, errors
from tests.fixtures.delay import delivered
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.processes import wait_until
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, UNKNOWN, Asked, Checker, StartProducer, halves

ORDER = Message("orders", "half", "paid", "order-17", {"a": "b"})
SHOP = 'the "shop"'


@pytest.fixture
def shop(principal: Principal) -> str:
    """The DSN of a role that may send to `orders`."""
    return principal(SHOP, send=["orders"])


@pytest.mark.parametrize(("answer", "bodies"), [(COMMIT, ["half"]), (ROLLBACK, [])], ids=["commit", "rollback"])
def test_a_transaction_ends_as_the_listener_says(
    broker: Connection, shop: str, transactional_producer: StartProducer, answer: LocalTransactionState, bodies: Any
) -> None:
    producer = transactional_producer(Asked(answer), dsn=shop)

    result = producer.send_in_transaction(ORDER)

    assert (result.local_transaction_state, result.queue.topic, result.queue_offset) == (answer, "orders", 0)
    assert delivered(broker) == bodies
    [half] = halves(broker)
    assert (half["principal"], half["copy_pos"] is not None) == (SHOP, answer is COMMIT)
    found = producer.outcome(result.message_id)
    assert found is not None


def test_the_copy_is_the_one_that_the_owner_would_have_made(
    broker: Connection, shop: str, database: Database, transactional_producer: StartProducer
) -> None:
    for dsn in (None, shop):
        transactional_producer(Asked(COMMIT), dsn=dsn).send_in_transaction(ORDER)

    kept = """SELECT properties - 'REAL_QID', tags_code, tags, keys, body, sys_flag, flag, reconsume_times
              FROM mqdb.commit_log WHERE sys_flag & 8 = 8"""
    of_owner, of_shop = database.rows(kept)
    assert of_owner == of_shop


def test_who_says_nothing_is_asked_and_its_answer_counts(
    broker: Connection, shop: str, transactional_producer: StartProducer
) -> None:
    listener = Asked(UNKNOWN, COMMIT)
    result = transactional_producer(listener, dsn=shop).send_in_transaction(ORDER)
    checker = Checker(broker)

    assert checker.after(5 * SECOND).due == 0
    checker.after(2 * SECOND)

    wait_until(lambda: delivered(broker) == ["half"])
    (message,) = listener.checks
    assert (message.message_id, message.body, message.queue.topic) == (result.message_id, b"half", "orders")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_an_answer_that_says_nothing_makes_room_for_the_next_check(
    broker: Connection, shop: str, transactional_producer: StartProducer
) -> None:
    listener = Asked(UNKNOWN, UNKNOWN)
    transactional_producer(listener, dsn=shop).send_in_transaction(ORDER)
    checker = Checker(broker)

    for count in (1, 2):
        checker.after(31 * SECOND)
        wait_until(lambda: [half["check_client"] for half in halves(broker)] == [None])
        assert len(listener.checks) == count


def test_a_check_waits_as_long_as_the_broker_is_told(
    broker: Connection, shop: str, transactional_producer: StartProducer
) -> None:
    transactional_producer(Asked(UNKNOWN), dsn=shop).send_in_transaction(ORDER)
    checker = Checker(broker, transaction_timeout=timedelta(seconds=20))

    assert checker.after(10 * SECOND).due == 0
    assert checker.after(11 * SECOND).asked == 1


def test_a_check_waits_for_the_immunity(broker: Connection, shop: str, transactional_producer: StartProducer) -> None:
    immune = Message("orders", "half", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    transactional_producer(Asked(UNKNOWN), dsn=shop).send_in_transaction(immune)
    checker = Checker(broker)

    assert checker.after(50 * SECOND).due == 0
    assert checker.after(11 * SECOND).asked == 1


def test_another_process_of_the_role_is_asked_and_no_other_role(
    broker: Connection, shop: str, principal: Principal, transactional_producer: StartProducer
) -> None:
    """A check goes to another process of the same role, and to no other role.

    All roles use the same group name, including the owner, who has a half message as well.
    """
    rival, of_owner, of_heir = Asked(UNKNOWN, COMMIT), Asked(UNKNOWN, ROLLBACK), Asked(UNKNOWN, COMMIT)
    transactional_producer(rival, dsn=principal("rival", send=["orders"]))
    transactional_producer(of_owner).send_in_transaction(Message("orders", "of the owner"))
    gone = transactional_producer(Asked(UNKNOWN, COMMIT), dsn=shop)
    gone.send_in_transaction(ORDER)
    gone.shutdown()
    transactional_producer(of_heir, dsn=f"{shop}&application_name=heir")

    Checker(broker).after(7 * SECOND)

    wait_until(lambda: sorted(half["state"] for half in halves(broker)) == ["COMMITTED", "ROLLED_BACK"])
    assert [len(listener.checks) for listener in (rival, of_owner, of_heir)] == [0, 1, 1]
    assert delivered(broker) == ["half"]


def test_nobody_ends_what_another_role_has_sent(
    broker: Connection, shop: str, principal: Principal, transactional_producer: StartProducer
) -> None:
    sent = transactional_producer(Asked(UNKNOWN), dsn=shop).send_in_transaction(ORDER)
    of_owner = transactional_producer(Asked(UNKNOWN)).send_in_transaction(ORDER)
    engine = create_engine(principal("rival", send=["orders"]))
    with engine.connect() as rival:
        for result in (sent, of_owner):
            for state in (COMMIT, ROLLBACK, UNKNOWN):
                ending = EndTransaction("senders", result.log_pos, parse_unique_id(result.message_id), state)
                with pytest.raises(errors.HalfMessageNotFound):
                    end(rival, ending)
    engine.dispose()

    assert {half["state"] for half in halves(broker)} == {"PREPARED"}
    assert delivered(broker) == []


def test_who_may_not_send_to_a_topic_sends_no_half_message_there(
    broker: Connection, owner: Admin, shop: str, transactional_producer: StartProducer
) -> None:
    listener = Asked(COMMIT)
    producer = transactional_producer(listener, dsn=shop)
    owner.acl.grant(SHOP, read=["secret"])

    for topic in ("secret", "no-such-topic"):
        with pytest.raises(errors.AccessDenied, match=f"SEND on TOPIC '{topic}'"):
            producer.send_in_transaction(Message(topic, "x"))

    assert (listener.prepared, halves(broker)) == ([], [])


def test_who_may_not_send_any_more_commits_nothing(
    broker: Connection, owner: Admin, shop: str, transactional_producer: StartProducer
) -> None:
    class Listener(Asked):
        def execute_local_transaction(self, message: Any, argument: Any) -> Any:
            owner.acl.revoke(SHOP, send=["orders"])
            owner.acl.grant(SHOP, send=["other"])
            return super().execute_local_transaction(message, argument)

    transactional_producer(Listener(COMMIT), dsn=shop).send_in_transaction(ORDER)

    assert [half["state"] for half in halves(broker)] == ["PREPARED"]
    assert delivered(broker) == []


def test_half_messages_that_are_handed_in_with_others_are_stored_with_them(
    broker: Connection, shop: str, database: Database
) -> None:
    with TransactionProducer("senders", shop, listener=Asked(COMMIT)) as producer:
        sends = [producer.send_async(Message("orders", str(number))) for number in range(200)]
        sends += [producer.send_async(Message("orders", "later", delay_level=18)) for _ in range(5)]
        halves_sent = [producer.send_in_transaction(ORDER) for _ in range(5)]
        positions = {send.result(60).log_pos for send in sends} | {half.log_pos for half in halves_sent}

    assert len(positions) == 210
    assert database.rows("SELECT count(*) FROM mqdb.half_message WHERE state = 'COMMITTED'") == [(5,)]


def test_the_owner_resolves_what_a_role_has_sent_and_has_that_role_asked_again(
    broker: Connection, owner: Admin, shop: str, transactional_producer: StartProducer
) -> None:
    listener = Asked(UNKNOWN, UNKNOWN)
    producer = transactional_producer(listener, dsn=shop)
    by_hand, resumed = (producer.send_in_transaction(ORDER) for _ in range(2))

    owner.transactions.resolve(by_hand.transaction_id, Resolution.COMMIT)
    assert delivered(broker) == ["half"]

    checker = Checker(broker, check_max=0)
    checker.after(7 * SECOND)
    assert [half["state"] for half in halves(broker)] == ["COMMITTED", "DISCARDED"]
    owner.transactions.resolve(resumed.transaction_id, Resolution.RESUME)
    listener.checked = COMMIT
    Checker(broker).after(14 * SECOND)
    wait_until(lambda: delivered(broker) == ["half", "half"])
