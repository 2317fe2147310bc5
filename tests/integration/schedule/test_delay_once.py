"""Each delayed message is delivered exactly once, even if several processes deliver, and some of them are killed."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, text

from mqdb.broker.schedule import delay as verb
from mqdb.broker.schedule.delay import deliver_due
from mqdb.errors import BrokerUnavailable
from mqdb.store.engine import driver, transaction
from mqdb.store.schedule import delay_queues as schedule
from mqdb.store.schedule import delay_steps
from mqdb.store.schedule.delay_steps import DelayStep, DelayWindow
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.delay import delay, deliver_all, delivered, move_clock, steps
from tests.fixtures.variants import usually

HOUR = timedelta(hours=1)


@pytest.fixture
def second(engine: Engine) -> Iterator[Connection]:
    """Another session that delivers."""
    with engine.connect() as connection:
        move_clock(connection, HOUR)
        yield connection


@pytest.fixture
def due(broker: Connection) -> list[str]:
    """Bodies of due messages, in two levels."""
    topic(broker, "orders")
    bodies = ["a", "b", "c", "d"]
    delay(broker, 1, "a", "b")
    delay(broker, 2, "c", "d")
    move_clock(broker, HOUR)
    return bodies


def taken(connection: Connection) -> tuple[list[DelayStep], DelayWindow]:
    """The steps that are due, as read in one query."""
    heads, _ = schedule.look(connection, 1000, 0)
    intact = [head for head in heads if head.due_to is not None]
    return [
        DelayStep(head.level, head.queue_key, head.seq + 1, head.next_offset, head.due_to)
        for head in intact
        if head.due_to is not None
    ], DelayWindow(0, 2**31 - 1, 0, 2**63 - 1)


def test_a_step_says_how_far_its_level_is(broker: Connection, due: list[str]) -> None:
    deliver_due(broker)
    delay(broker, 1, "e")
    move_clock(broker, 2 * HOUR)
    deliver_due(broker)

    assert (steps(broker, 1), steps(broker, 2)) == ([(1, 2, 2), (2, 3, 1)], [(1, 2, 2)])


def test_a_round_without_work_takes_no_step(broker: Connection, due: list[str]) -> None:
    deliver_all(broker)
    before = broker.scalar(text("SELECT count(*) FROM mqdb.delay_offset"))

    for _ in range(3):
        deliver_due(broker)

    assert broker.scalar(text("SELECT count(*) FROM mqdb.delay_offset")) == before


def test_while_another_session_delivers_nothing_is_done(broker: Connection, second: Connection, due: list[str]) -> None:
    with transaction(second):
        assert deliver_due(second).messages == 4
        assert deliver_due(broker).messages == 0

    assert deliver_due(broker).messages == 0
    assert delivered(broker) == due


def test_a_step_is_taken_once(broker: Connection, second: Connection, due: list[str]) -> None:
    """A step is taken once. The lock keeps other sessions out while it is held, and the key for ever."""
    steps, window = taken(broker)
    deliver_due(second)

    with pytest.raises(pg.UniqueViolation):
        delay_steps.take(broker, steps, window)

    assert delivered(broker) == due


def test_a_look_that_was_overtaken_delivers_nothing(
    broker: Connection, second: Connection, due: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = schedule.look

    def slow(connection: Connection, limit: int, first_segment: int) -> object:
        seen = look(connection, limit, first_segment)
        if connection is broker:
            deliver_due(second)
        return seen

    monkeypatch.setattr(schedule, "look", slow)
    assert deliver_due(broker).messages == 0

    assert delivered(broker) == due


def test_what_a_killed_deliverer_has_not_committed_is_delivered_by_the_next(
    broker: Connection, second: Connection, due: list[str]
) -> None:
    pid = driver(second).info.backend_pid
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(BrokerUnavailable))
        with transaction(second):
            assert deliver_due(second).messages == 4
            broker.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            deliver_due(second)
    second.invalidate()

    assert delivered(broker) == []
    assert deliver_due(broker).messages == 4
    assert delivered(broker) == due


def test_steps_are_durable_whatever_the_session_has_chosen(broker: Connection) -> None:
    broker.execute(text("SET synchronous_commit = off"))
    with transaction(broker):
        delay_steps.begin(broker)
        within = broker.scalar(text("SHOW synchronous_commit"))

    assert (within, broker.scalar(text("SHOW synchronous_commit"))) == ("local", "off")


def test_old_steps_are_removed(broker: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "STEPS_KEPT", 5)
    topic(broker, "orders")
    delay(broker, 1, *map(str, range(23)))
    move_clock(broker, HOUR)

    deliver_all(broker, max_messages=1)

    assert [seq for seq, _, _ in steps(broker, 1)] == list(range(15, 24))
    assert len(delivered(broker)) == 23


# -- random interleavings ---------------------------------------------------------------------------


class Play:
    """Two deliverers, one of which may keep its transaction open, while messages keep arriving."""

    def __init__(self, sessions: list[Connection], seed: int) -> None:
        self.random = random.Random(seed)
        self.sender, *self.deliverers = sessions
        self.sent: list[list[str]] = [[], [], []]
        self.history: list[str] = []
        self.holding: Connection | None = None
        self.offset = timedelta(0)

    def run(self) -> None:
        for _ in range(self.random.randint(20, 40)):
            self.random.choice((self.send, self.send, self.move, self.deliver, self.deliver, self.deliver, self.end))()
        self.end()
        self.offset += timedelta(days=1)
        for _ in range(50):
            self.deliver()
        self.end()
        for connection in self.deliverers:
            while deliver_due(connection, 5).messages:
                pass

    def send(self) -> None:
        level = self.random.randint(1, 3)
        bodies = [f"{level}.{len(self.sent[level - 1]) + n}" for n in range(self.random.randint(1, 6))]
        move_clock(self.sender, self.offset)
        delay(self.sender, level, *bodies, dispatched=self.random.random() < 0.7)
        self.sent[level - 1] += bodies
        self.history.append(f"send {bodies}")

    def move(self) -> None:
        self.offset += timedelta(seconds=self.random.randint(1, 12))
        dispatch_all(self.sender)
        self.history.append(f"clock at {self.offset}")

    def deliver(self) -> None:
        number = self.random.randrange(2)
        connection = self.deliverers[number]
        if connection is self.holding:
            return
        dispatch_all(self.sender)
        move_clock(connection, self.offset)
        keep_open = self.holding is None and self.random.random() < 0.4
        if keep_open:
            driver(connection).execute("BEGIN")
            self.holding = connection
        messages = deliver_due(connection, self.random.randint(1, 8)).messages
        self.history.append(f"deliverer {number}: {messages}{', kept open' if keep_open else ''}")

    def end(self) -> None:
        if self.holding is not None:
            how = self.random.choice(("COMMIT", "ROLLBACK"))
            driver(self.holding).execute(how)
            self.history.append(how)
            self.holding = None


@pytest.mark.parametrize("number", usually(*range(2), of=range(12)))
def test_over_any_interleaving_each_message_comes_once_and_in_order(
    engine: Engine, broker: Connection, number: int
) -> None:
    topic(broker, "orders")
    seed = random.randrange(2**32)
    with engine.connect() as one, engine.connect() as other:
        play = Play([broker, one, other], seed)
        play.run()
        assert all(driver(c).info.transaction_status is TransactionStatus.IDLE for c in (broker, one, other))
    story = f"seed {seed}\n" + "\n".join(play.history)
    came = delivered(broker)
    doubled = [body for body, count in Counter(came).items() if count > 1]
    assert not doubled, story
    for level, sent in enumerate(play.sent, start=1):
        assert [body for body in came if body.startswith(f"{level}.")] == sent, story
