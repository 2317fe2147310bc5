"""Each time of a cron is sent exactly once, even if several processes fire, and some of them are killed."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.schedule.cron import CatchUp
from mqdb.errors import BrokerUnavailable
from mqdb.store.engine import driver, transaction
from mqdb.store.schedule import cron as crons
from mqdb.store.schedule.cron import list_crons
from tests.fixtures.broker import topic
from tests.fixtures.crons import add, fire, sent, set_clock
from tests.fixtures.variants import usually

DUE = "2026-07-14 09:10:01"


@pytest.fixture
def second(engine: Engine) -> Iterator[Connection]:
    """Another session that fires crons."""
    with engine.connect() as connection:
        set_clock(connection, DUE)
        yield connection


@pytest.fixture
def due(broker: Connection) -> Connection:
    """A session in which two crons are due."""
    topic(broker, "orders")
    set_clock(broker, "2026-07-14 09:05:00")
    add(broker, name="a")
    add(broker, name="b")
    set_clock(broker, DUE)
    return broker


def names(connection: Connection) -> list[str]:
    rows = connection.execute(text("SELECT properties ->> 'MQDB_CRON_NAME' FROM mqdb.commit_log ORDER BY log_pos"))
    return list(rows.scalars())


def test_while_another_session_fires_nothing_is_sent_and_nobody_waits(due: Connection, second: Connection) -> None:
    with transaction(second):
        assert len(fire(second).firings) == 2
        found = fire(due)

    assert (found.firings, found.next_due_in) == ((), timedelta(0))
    assert fire(due).firings == ()
    assert names(due) == ["a", "b"]


def test_what_another_session_does_not_hold_is_fired(due: Connection, second: Connection) -> None:
    with transaction(second):
        second.execute(text("SELECT FROM mqdb.cron WHERE name = 'a' FOR UPDATE"))
        assert [firing.name for firing in fire(due).firings] == ["b"]

    assert [firing.name for firing in fire(due).firings] == ["a"]


def test_what_a_killed_sender_has_not_committed_is_sent_by_the_next(due: Connection, second: Connection) -> None:
    pid = driver(second).info.backend_pid
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(BrokerUnavailable))
        with transaction(second):
            assert len(fire(second).firings) == 2
            due.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            fire(second)
    second.invalidate()

    assert names(due) == []
    assert len(fire(due).firings) == 2
    assert names(due) == ["a", "b"]


def test_a_topic_that_goes_while_it_is_fired_costs_the_firings_and_not_the_round(
    due: Connection, second: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_due = crons.take_due

    def slow(connection: Connection, limit: int) -> object:
        found = take_due(connection, limit)
        second.execute(text("DELETE FROM mqdb.topic WHERE topic = 'orders'"))
        return found

    monkeypatch.setattr(crons, "take_due", slow)

    assert [(firing.sent, firing.skipped) for firing in fire(due).firings] == [(0, 1), (0, 1)]


# -- random interleavings -----------------------------------------------------------------------


class Play:
    """Two senders, one of which may keep its transaction open, while time passes."""

    def __init__(self, senders: list[Connection], seed: int) -> None:
        self.random = random.Random(seed)
        self.senders = senders
        self.now = datetime(2026, 7, 14, 9, 0, tzinfo=UTC)
        self.holding: Connection | None = None
        self.history: list[str] = []

    def run(self) -> None:
        for _ in range(40):
            self.random.choice((self.move, self.fire, self.fire, self.fire, self.end))()
        self.end()
        for _ in range(40):
            self.fire()
            self.end("COMMIT")

    def move(self) -> None:
        self.now += timedelta(seconds=self.random.choice((1, 30, 61, 600, 2000)))
        self.history.append(f"{self.now}")

    def fire(self) -> None:
        number = self.random.randrange(2)
        connection = self.senders[number]
        if connection is self.holding:
            return
        set_clock(connection, f"{self.now:%Y-%m-%d %H:%M:%S}")
        if self.holding is None and self.random.random() < 0.4:
            driver(connection).execute("BEGIN")
            self.holding = connection
        firings = [(firing.name, firing.sent) for firing in fire(connection, self.random.randint(1, 4)).firings]
        self.history.append(f"sender {number}: {firings}")

    def end(self, how: str = "") -> None:
        if self.holding is not None:
            how = how or self.random.choice(("COMMIT", "ROLLBACK"))
            driver(self.holding).execute(how.encode())
            self.history.append(how)
            self.holding = None


@pytest.mark.parametrize("number", usually(*range(4), of=range(12)))
def test_over_any_interleaving_each_time_is_sent_once_and_in_order(
    engine: Engine, broker: Connection, number: int
) -> None:
    """In any interleaving each time is sent once and in order, compared with an enumeration.

    All times with `all`, the last of them with `once`.
    """
    for name in ("all", "once"):
        topic(broker, name)
    set_clock(broker, "2026-07-14 09:00:00")
    add(broker, "*/7 * * * *", "all", topic="all", catch_up=CatchUp.ALL)
    add(broker, "*/7 * * * *", "once", topic="once")
    seed = random.randrange(2**32)
    with engine.connect() as one, engine.connect() as other:
        play = Play([one, other], seed)
        play.run()
    story = f"seed {seed}\n" + "\n".join(play.history)

    minutes = int((play.now - datetime(2026, 7, 14, 9, 0, tzinfo=UTC)).total_seconds()) // 60
    each = [play.now.replace(hour=9, minute=0, second=0, day=14) + timedelta(minutes=n) for n in range(1, minutes + 1)]
    planned = [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in each if time.minute % 7 == 0]
    assert sent(broker, "all") == planned, story
    once = sent(broker, "once")
    assert once == sorted(set(once)), story
    assert set(once) <= set(planned), story
    assert once[-1:] == planned[-1:], story
    assert [cron.sent for cron in list_crons(broker)] == [len(planned), len(once)], story
