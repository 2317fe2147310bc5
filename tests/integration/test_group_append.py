"""Group append: who leads, who is taken along, and what becomes of each when time runs out."""

import _thread
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from queue import SimpleQueue

import pytest
from sqlalchemy import Connection, Engine

from mqdb.broker import send
from mqdb.errors import BrokerUnavailable, IllegalState, MessageIllegal, MqdbError, SendGivenUp
from mqdb.message import Message
from mqdb.store.commit_log import Record
from mqdb.unique_id import UniqueIdGenerator
from mqdb_client import group_append
from mqdb_client.append_unit import OutcomeUnknown, Unit
from mqdb_client.group_append import GroupAppend
from mqdb_client.held_connection import HeldConnection
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked
from tests.fixtures.threads import Doing

STALL = "LOCK TABLE mqdb.commit_log IN SHARE MODE"
_ids = UniqueIdGenerator()


class Given(Unit):
    """A unit of records that are there already, or of none that can be made."""

    def __init__(self, records: Sequence[Record] | Exception, seconds: float) -> None:
        super().__init__("orders", time.monotonic() + seconds, timeout_seconds=3.0)
        self._given = records

    def records(self) -> Sequence[Record]:
        if isinstance(self._given, Exception):
            raise self._given
        return self._given


class Log:
    """A locked log, and senders in front of it. Each sends messages named after it."""

    def __init__(self, database: Database, engine: Engine) -> None:
        self.database = database
        self.connection = database.connect()
        [self.queue_key] = create_topic(self.connection, "orders", 1)
        self.locker = database.connect(autocommit=False)
        self.locker.execute(STALL)
        self.held = HeldConnection(engine.connect)
        self.held.open()
        self.held.wait_connected(time.monotonic() + 10)
        self.appends = GroupAppend(self.held)

    def records(self, name: str, count: int = 1, size: int = 0) -> list[Record]:
        body = name.encode() + b"." * size
        message = Message("orders", body)
        return [send.record(message, self.queue_key, _ids.next(), datetime.now(UTC), "test") for _ in range(count)]

    def unit(self, name: str, seconds: float = 30, count: int = 1, size: int = 0) -> Given:
        return Given(self.records(name, count, size), seconds)

    def sender(
        self, name: str, seconds: float = 30, count: int = 1, size: int = 0
    ) -> Doing[Sequence[int] | OutcomeUnknown]:
        """Begins to send; returns when it is under way or waits."""
        return self.begin(self.unit(name, seconds, count, size))

    def begin(self, unit: Unit) -> Doing[Sequence[int] | OutcomeUnknown]:
        is_first, waiting = not self.appends._is_busy, len(self.appends._waiting)

        def append() -> Sequence[int] | OutcomeUnknown:
            try:
                self.appends.append(unit)
            except OutcomeUnknown as unknown:
                return unknown
            return unit.positions

        doing = Doing(append)
        wait_until(lambda: self.is_under_way() if is_first else len(self.appends._waiting) > waiting)
        return doing

    def is_under_way(self) -> bool:
        """Whether the server was asked for a statement: it waits for the lock."""
        link = self.held._link
        return link is not None and is_blocked(self.database, link.driver.info.backend_pid)

    def unlock(self) -> None:
        self.locker.rollback()

    def statements(self) -> list[list[str]]:
        """The first letters of the bodies that were stored together, in their order."""
        rows = self.connection.execute(
            """SELECT array_agg(left(convert_from(body, 'UTF8'), 1) ORDER BY log_pos) FROM mqdb.commit_log
               GROUP BY xid::text ORDER BY min(log_pos)"""
        )
        return [row[0] for row in rows]


def stored(sender: "Doing[Sequence[int] | OutcomeUnknown]") -> list[int]:
    positions = sender.result()
    assert not isinstance(positions, OutcomeUnknown)
    return list(positions)


@pytest.fixture
def log(database: Database, engine: Engine) -> Iterator[Log]:
    log = Log(database, engine)
    yield log
    log.unlock()
    log.appends.close()
    log.held.close()


def test_those_who_gather_are_stored_together_in_their_order(log: Log) -> None:
    senders = [log.sender(name) for name in "abcd"]
    log.unlock()

    positions = [stored(sender) for sender in senders]

    assert log.statements() == [["a"], ["b", "c", "d"]]
    assert positions == sorted(positions)


def test_one_that_is_given_up_does_not_take_others_with_it(log: Log) -> None:
    first = log.sender("a", seconds=0.5)
    second = log.sender("b", seconds=1.5)
    third = log.sender("c")

    assert isinstance(first.error(), SendGivenUp)
    # The second leads now, with the third in its statement.
    assert isinstance(second.error(), SendGivenUp)
    log.unlock()

    assert len(stored(third)) == 1
    assert log.statements() == [["c"]]


def test_with_hardly_any_time_left_nobody_begins_a_statement_for_others(log: Log) -> None:
    first = log.sender("a", seconds=1.0)
    second = log.sender("b", seconds=1.05)
    third = log.sender("c")

    assert isinstance(first.error(), SendGivenUp)
    assert isinstance(second.error(), SendGivenUp)
    log.unlock()
    third.result()
    assert log.statements() == [["c"]]


def test_who_waits_in_vain_has_stored_nothing(log: Log) -> None:
    first = log.sender("a")
    second = log.sender("b", seconds=0.2)

    assert isinstance(second.error(), SendGivenUp)
    log.unlock()
    first.result()

    assert log.statements() == [["a"]]


def test_who_is_under_way_with_another_does_not_know_the_outcome(log: Log) -> None:
    first = log.sender("a", seconds=0.5)
    second = log.sender("b")
    third = log.sender("c", seconds=1.0)

    assert isinstance(first.error(), SendGivenUp)
    assert isinstance(third.outcome(), OutcomeUnknown)
    log.unlock()
    second.result()

    assert log.statements() == [["b", "c"]]


def test_ctrl_c_in_the_thread_that_leads_leaves_the_others_with_an_answer(log: Log) -> None:
    first = log.sender("a", seconds=0.5)
    third: list[Doing[Sequence[int] | OutcomeUnknown]] = []

    def interrupt() -> None:
        wait_until(lambda: len(log.appends._waiting) == 1)
        third.append(log.sender("c"))
        first.error()
        # Now the main thread leads, with the third in its statement.
        wait_until(lambda: log.held._current is not None and not log.appends._waiting)
        _thread.interrupt_main()

    interrupter = Doing(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.appends.append(log.unit("b"))
    interrupter.result()

    assert isinstance(third[0].outcome(), OutcomeUnknown)
    log.unlock()
    log.appends.append(log.unit("d"))
    assert log.statements() == [["d"]]


def test_a_statement_carries_no_more_than_its_share(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_append, "MAX_GATHERED_MESSAGES", 3)
    senders = [log.sender("a"), log.sender("b", count=2), *(log.sender(name) for name in "cdefg")]
    log.unlock()

    assert [len(stored(sender)) for sender in senders] == [1, 2, 1, 1, 1, 1, 1]
    assert log.statements() == [["a"], ["b", "b", "c"], ["d", "e", "f"], ["g"]]


def test_a_statement_carries_no_more_bytes_than_its_share(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_append, "MAX_GATHERED_BYTES", 3_000)
    senders = [log.sender(name, size=1_200) for name in "abcd"] + [log.sender("e", size=10_000), log.sender("f")]
    log.unlock()

    for sender in senders:
        sender.result()
    assert log.statements() == [["a"], ["b", "c"], ["d"], ["e"], ["f"]]


def test_one_whose_records_cannot_be_made_fails_alone(log: Log) -> None:
    first = log.sender("a")
    second = log.sender("b")
    fault = MessageIllegal("no record can be made of it")
    third = log.begin(Given(fault, seconds=30))
    fourth = log.sender("d")
    log.unlock()

    assert third.error() is fault
    for sender in (first, second, fourth):
        assert len(stored(sender)) == 1
    assert log.statements() == [["a"], ["b"], ["d"]]


def test_after_the_end_nothing_is_taken(log: Log) -> None:
    log.unlock()
    log.appends.close()

    with pytest.raises(IllegalState, match="shut down"):
        log.appends.append(log.unit("a"))


def test_a_queue_that_is_gone_is_asked_for_once(log: Log) -> None:
    senders = [log.sender(name) for name in "abcdefgh"]
    log.connection.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
    before = log.connection.execute("SELECT last_value FROM mqdb.log_pos").fetchone()
    log.unlock()

    errors: list[MqdbError] = [sender.error() for sender in senders]

    assert {str(error) for error in errors} == {
        "topic 'orders' does not exist; create it with: mqdb topic create orders"
    }
    after = log.connection.execute("SELECT last_value FROM mqdb.log_pos").fetchone()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] <= 2


# -- units that nobody waits for ----------------------------------------------------------------


def test_what_is_handed_in_is_stored_with_those_who_wait_in_their_order(log: Log) -> None:
    done: SimpleQueue[Unit] = SimpleQueue()
    senders = [log.sender("a"), log.sender("b")]
    handed_in = log.unit("c", count=2)
    log.appends.hand_in(handed_in, partial(done.put, handed_in))
    senders.append(log.sender("d"))
    log.unlock()

    positions = [position for sender in senders for position in stored(sender)]
    assert done.get(timeout=10) is handed_in

    assert log.statements() == [["a"], ["b", "c", "c", "d"]]
    assert positions[1] < handed_in.positions[0] < handed_in.positions[1] < positions[2]


def test_what_is_handed_in_where_nobody_is_at_work_needs_no_other_thread(log: Log) -> None:
    log.unlock()
    done: SimpleQueue[Unit] = SimpleQueue()
    for name in "abc":
        unit = log.unit(name)
        log.appends.hand_in(unit, partial(done.put, unit))

    assert [done.get(timeout=10).error for _ in "abc"] == [None] * 3
    assert list(chain.from_iterable(log.statements())) == ["a", "b", "c"]


def test_what_is_handed_in_is_given_up_at_its_deadline(log: Log) -> None:
    done: SimpleQueue[Unit] = SimpleQueue()
    for name, seconds in (("a", 0.5), ("b", 0.6)):
        unit = log.unit(name, seconds)
        log.appends.hand_in(unit, partial(done.put, unit))

    assert all(isinstance(done.get(timeout=10).error, SendGivenUp) for _ in "ab")
    log.unlock()
    assert log.statements() == []


def test_what_is_handed_in_does_not_wait_for_a_connection_longer_than_its_deadline() -> None:
    """One that is tried again may have less time left than the one that leads."""
    done: SimpleQueue[str] = SimpleQueue()

    def refuse() -> Connection:
        raise BrokerUnavailable("127.0.0.1:1/nowhere", "refused")

    held = HeldConnection(refuse)
    held.open()
    wait_until(lambda: held.is_lost)
    appends = GroupAppend(held)
    leader, other = Given([], seconds=2.0), Given([], seconds=0.1)
    appends.hand_in(leader, lambda: done.put("leader"))
    appends.hand_in(other, lambda: done.put("other"))

    assert [done.get(timeout=10), done.get(timeout=10)] == ["other", "leader"]
    assert isinstance(other.error, BrokerUnavailable)
    appends.close()
    held.close()


def test_what_is_handed_in_is_not_stored_after_its_deadline(log: Log) -> None:
    """One that is tried again may have less time left than the one that leads."""
    done: SimpleQueue[str] = SimpleQueue()
    first = log.sender("1")
    in_time, late = log.unit("2"), log.unit("3", seconds=0.01)
    log.appends.hand_in(in_time, lambda: done.put("2"))
    log.appends.hand_in(late, lambda: done.put("3"))
    wait_until(lambda: time.monotonic() > late.deadline)

    log.unlock()

    assert {done.get(timeout=10), done.get(timeout=10)} == {"2", "3"}
    assert len(stored(first)) == 1
    assert isinstance(late.error, SendGivenUp)
    assert (in_time.error, log.statements()) == (None, [["1"], ["2"]])


def test_the_end_waits_for_what_was_handed_in(log: Log) -> None:
    done: SimpleQueue[Unit] = SimpleQueue()
    for name in "ab":
        unit = log.unit(name)
        log.appends.hand_in(unit, partial(done.put, unit))
    closing = Doing(log.appends.close)
    wait_until(lambda: log.appends._is_closed)
    log.unlock()

    closing.result()
    assert list(chain.from_iterable(log.statements())) == ["a", "b"]
    assert done.qsize() == 2
