"""Transactional consumers that lose their queue, their connection or the answer to a commit."""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.common.message import MessageQueue
from mqdb.errors import ShutdownTimedOut
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.engine import driver
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageContext, ConsumeReturnType
from tests.fixtures.broker import append, topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.retries import scheduled
from tests.fixtures.threads import Doing
from tests.fixtures.transactional import Ledger, Messages, SlowCommit, TransactionalMember
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_consumers")

# A queue that was dropped is taken again at once, or a second after the connection is back.
AGAIN_SECONDS = 15.0


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def send(broker: Connection, count: int) -> list[int]:
    """Send messages 0 to `count` - 1 to the only queue of a new topic; returns its key."""
    route = topic(broker)
    append(broker, route, *numbers(count))
    return list(route.queue_keys)


class Held:
    """Holds the first listener call with this message until the test releases it."""

    def __init__(self, body: str) -> None:
        self._body = body
        self.is_held = threading.Event()
        self._let_go = threading.Event()
        self.pid = 0

    def __call__(self, messages: Messages, connection: Connection) -> None:
        if self._body in [message.body.decode() for message in messages] and not self.is_held.is_set():
            self.pid = driver(connection).info.backend_pid
            self.is_held.set()
            assert self._let_go.wait(60), "nobody has let it go"

    def let_go(self) -> None:
        self._let_go.set()


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held("5")
    yield held
    held.let_go()


# -- ownership ----------------------------------------------------------------------------------


def all_queues(_group: str, _client_id: str, queues: Sequence[MessageQueue], _ids: Sequence[str]) -> list[MessageQueue]:
    """An allocation that gives every queue to each member, so that members take queues from each other by force."""
    return list(queues)


def test_who_has_lost_the_queue_meanwhile_has_consumed_nothing(
    broker: Connection, transactional_member: TransactionalMember, held: Held
) -> None:
    send(broker, 10)
    ledger = Ledger(broker, held)
    members = [transactional_member(ledger, allocate_message_queue_strategy=all_queues)]
    assert held.is_held.wait(20)

    options = {"allocate_message_queue_strategy": all_queues, "hand_over_grace": timedelta(seconds=0.1)}
    members.append(transactional_member(ledger, **options))
    ledger.wait_for(10)
    held.let_go()
    for member in members:
        member.shutdown()

    assert ledger.bodies == numbers(10)


@pytest.mark.long
def test_members_that_tear_a_queue_from_each_other_consume_each_message_once(
    broker: Connection, transactional_member: TransactionalMember
) -> None:
    route = topic(broker, queues=2)
    ledger = Ledger(broker)
    options = {"allocate_message_queue_strategy": all_queues, "hand_over_grace": timedelta(seconds=0.1)}
    members = [transactional_member(ledger, **options, consume_message_batch_max_size=4) for _ in range(2)]
    count = 0
    while takeovers(broker) < 5:
        append(broker, route, *(str(number) for number in range(count, count + 20)), queue_id=count // 20 % 2)
        count += 20
        ledger.wait_for(count - 100)
    ledger.wait_for(count)
    for member in members:
        member.shutdown()

    assert sorted(ledger.bodies, key=int) == numbers(count)


def takeovers(broker: Connection) -> int:
    """The number of ownership changes of the queues of `orders`."""
    epochs = (
        "SELECT sum(epoch) FROM mqdb.consumer_offset JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)"
    )
    return broker.scalar(text(f"{epochs} WHERE topic = 'orders'")) or 0


@pytest.mark.parametrize("orderly", usually(False, of=[False, True]), ids=["concurrent", "orderly"])
def test_a_queue_that_was_lost_is_taken_again(
    broker: Connection, transactional_member: TransactionalMember, held: Held, orderly: bool
) -> None:
    send(broker, 10)
    ledger = Ledger(broker, held, orderly=orderly)
    transactional_member(ledger, orderly=orderly)
    assert held.is_held.wait(20)

    broker.execute(text("UPDATE mqdb.consumer_offset SET epoch = epoch + 5, owner = NULL"))
    broker.execute(text("DELETE FROM mqdb.queue_lock"))
    held.let_go()
    ledger.wait_for(10, AGAIN_SECONDS)

    assert ledger.bodies == numbers(10)
    assert ledger.calls.count(["5"]) == 2


def test_shutdown_waits_for_the_transaction_that_runs(
    broker: Connection, transactional_member: TransactionalMember, held: Held
) -> None:
    keys = send(broker, 10)
    ledger = Ledger(broker, held)
    consumer = transactional_member(ledger)
    assert held.is_held.wait(20)
    leaving = Doing(consumer.shutdown)
    wait_until(lambda: consumer.assignment == ())
    held.let_go()
    leaving.result()

    assert ledger.bodies == numbers(6)
    assert committed_offsets(broker, "readers", keys) == {keys[0]: 6}


def test_who_does_not_wait_for_a_listener_leaves_its_messages_to_others(
    broker: Connection, transactional_member: TransactionalMember, held: Held
) -> None:
    send(broker, 10)
    ledger = Ledger(broker, held)
    consumer = transactional_member(ledger)
    assert held.is_held.wait(20)

    with pytest.raises(ShutdownTimedOut):
        consumer.shutdown(timedelta(seconds=0.1))
    transactional_member(ledger)
    ledger.wait_for(10)
    held.let_go()

    assert ledger.bodies == numbers(10)


# -- connections --------------------------------------------------------------------------------


@pytest.mark.parametrize("notices", usually("the commit notices", of=["the listener notices", "the commit notices"]))
def test_a_connection_that_is_lost_costs_no_message_and_no_retry(
    broker: Connection, transactional_member: TransactionalMember, held: Held, notices: str
) -> None:
    send(broker, 10)

    def then(messages: Messages, connection: Connection) -> None:
        held(messages, connection)
        if notices == "the listener notices":
            connection.execute(text("SELECT 1"))

    ledger = Ledger(broker, then)
    transactional_member(ledger)
    assert held.is_held.wait(20)

    broker.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": held.pid})
    held.let_go()
    ledger.wait_for(10, AGAIN_SECONDS)

    assert ledger.bodies == numbers(10)
    assert scheduled(broker) == []


def finish_first(commit: SlowCommit, proxy: Proxy) -> None:
    commit.let_go()
    proxy.restore()


def finish_later(commit: SlowCommit, proxy: Proxy) -> None:
    proxy.restore()
    # The client has come back, and waits for what it has left behind.
    wait_until(commit.is_waited_for)
    commit.let_go()


def roll_back(commit: SlowCommit, proxy: Proxy) -> None:
    commit.kill()
    proxy.restore()
    commit.let_go()


@pytest.mark.parametrize("end", usually(finish_later, roll_back, of=[finish_first, finish_later, roll_back]))
def test_a_commit_that_is_not_answered_happens_once(
    broker: Connection,
    database: Database,
    proxy: Proxy,
    transactional_member: TransactionalMember,
    end: Callable[[SlowCommit, Proxy], None],
) -> None:
    """A commit without an answer happens once, whether it was committed, will be, or never will."""
    send(broker, 10)
    ledger = Ledger(broker)
    commit = SlowCommit(database)
    transactional_member(ledger, dsn=proxy.dsn)
    wait_until(commit.pid, 20)

    proxy.cut()
    end(commit, proxy)
    ledger.wait_for(10, AGAIN_SECONDS)

    assert ledger.bodies == numbers(10)
    assert scheduled(broker) == []


# -- hooks --------------------------------------------------------------------------------------


class Observer:
    """A hook that records how each call ended."""

    hook_name = "observer"

    def __init__(self) -> None:
        self.ends: list[ConsumeReturnType | None] = []

    def consume_message_before(self, _context: ConsumeMessageContext) -> None:
        pass

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.ends.append(context.return_type)


def test_hooks_see_how_transactions_end(broker: Connection, transactional_member: TransactionalMember) -> None:
    """Hooks see how transactions end, not only the listener's answer.

    In this test the listener has rolled back its second transaction.
    """
    send(broker, 2)
    observer = Observer()
    rollbacks = iter([False, True])

    def then(_messages: Messages, connection: Connection) -> None:
        if next(rollbacks, False):
            connection.rollback()

    ledger = Ledger(broker, then, orderly=True)
    consumer = transactional_member(ledger, observer, orderly=True)
    ledger.wait_for(2)
    consumer.shutdown()

    assert observer.ends == [ConsumeReturnType.SUCCESS, ConsumeReturnType.EXCEPTION, ConsumeReturnType.SUCCESS]
