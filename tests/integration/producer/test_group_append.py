"""Group append: which unit leads, which units join it, and the fate of each when time runs out."""

import _thread
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from queue import SimpleQueue

import pytest
from sqlalchemy import Connection

from mqdb.errors import BodyInvalid, BrokerUnavailable, IllegalState, MqdbError, SendGivenUp
from mqdb_client.producer.append import append_plan, group_append
from mqdb_client.producer.append.append_plan import NoAnswer, Unit
from mqdb_client.producer.append.group_append import GroupAppend
from mqdb_client.producer.append.held_connection import HeldConnection
from mqdb_client.producer.append.waking import Sleeper, Waking
from tests.fixtures.appends import STALL, Given, Log, stored
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing


@pytest.fixture
def log(locked_log: Log) -> Log:
    return locked_log


def test_those_who_gather_are_stored_together_in_their_order(log: Log) -> None:
    senders = [log.sender(name) for name in "abcd"]
    log.unlock()

    positions = [stored(sender) for sender in senders]

    assert log.statements() == [["a"], ["b", "c", "d"]]
    assert positions == sorted(positions)


@pytest.mark.usefixtures("cancelled_early")
def test_one_that_is_given_up_does_not_take_others_with_it(log: Log) -> None:
    first = log.sender("a", seconds=4)
    second = log.sender("b", seconds=5)
    third = log.sender("c", seconds=60)

    assert isinstance(first.error(), SendGivenUp)
    # The second leads now, with the third in its statement.
    assert isinstance(second.error(), SendGivenUp)
    log.unlock()

    assert len(stored(third)) == 1
    assert log.statements() == [["c"]]


@pytest.mark.usefixtures("cancelled_early")
def test_with_hardly_any_time_left_nobody_begins_a_statement_for_others(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_plan, "_SHARE_TO_LEAD", 1.0)  # of the 3 s of a `Given`
    leaders: list[Unit] = []
    lead = log.appends._lead

    def noted(batch: list[Unit], leader: Unit) -> None:
        leaders.append(leader)
        lead(batch, leader)

    monkeypatch.setattr(log.appends, "_lead", noted)
    # When the first is given up, after 2 s, the second has another second.
    units = [log.unit("a", seconds=8), log.unit("b", seconds=3), log.unit("c", seconds=60)]
    first, second, third = (log.begin(unit) for unit in units)

    assert isinstance(first.error(), SendGivenUp)
    assert isinstance(second.error(), SendGivenUp)
    log.unlock()
    third.result()
    assert log.statements() == [["c"]]
    assert leaders == [units[0], units[2]]


def test_who_waits_in_vain_has_stored_nothing(log: Log) -> None:
    first = log.sender("a")
    second = log.sender("b", seconds=0.2)

    assert isinstance(second.error(), SendGivenUp)
    log.unlock()
    first.result()

    assert log.statements() == [["a"]]


def test_who_is_under_way_with_another_does_not_know_the_outcome(log: Log) -> None:
    ended = threading.Event()
    free = log.occupy()
    log.appends.hand_in(log.unit("a"), ended.set)
    other = log.sender("b", seconds=2)
    free()

    assert isinstance(other.outcome(), NoAnswer)
    log.unlock()
    assert ended.wait(30)

    assert log.statements() == [["a", "b"]]


def test_ctrl_c_in_the_thread_that_leads_leaves_the_others_with_an_answer(log: Log) -> None:
    """Ctrl-C in the leading thread leaves the others with an answer.

    The main thread leads, with another unit in its statement, which arrived while it waited for the connection.
    """
    free = log.occupy()
    other: list[Doing[Sequence[int] | NoAnswer]] = []

    def interrupt() -> None:
        wait_until(lambda: log.appends._plan.is_busy)
        other.append(log.sender("c"))
        free()
        wait_until(log.is_under_way)
        _thread.interrupt_main()

    interrupter = Doing(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.appends.append(log.unit("b"))
    interrupter.result()

    assert isinstance(other[0].outcome(), NoAnswer)
    assert other[0].seconds < 20, "it was told so at its deadline only"
    log.unlock()
    log.appends.append(log.unit("d"))
    assert log.statements() == [["d"]]


def test_ctrl_c_in_a_thread_that_is_taken_along_leaves_the_others_to_be_woken(log: Log) -> None:
    first = log.sender("a")
    others: list[Doing[Sequence[int] | NoAnswer]] = []

    def interrupt() -> None:
        wait_until(lambda: len(log.appends._plan.waiting) == 1)
        others.extend(log.sender(name) for name in "cd")
        # A real signal: it has to end the wait for a lock.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = Doing(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.appends.append(log.unit("b"))
    interrupter.result()
    log.unlock()

    for sender in (first, *others):
        assert len(stored(sender)) == 1
    assert log.statements() == [["a"], ["c", "d"]]


def test_one_that_leaves_before_it_is_woken_wakes_the_next(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that leaves before it is woken wakes the next one.

    The sender's time runs out just when it has a result, and the senders behind it have one, too.
    """
    monkeypatch.setattr(group_append, "_LONGEST_WAKING_SECONDS", 60.0)  # the own thread would wake it
    units = [log.unit("a"), log.unit("b", seconds=3), *(log.unit(name) for name in "cde")]
    senders = [log.begin(unit) for unit in units]
    waking = log.appends._waking
    begin, leave = waking.begin, waking.leave
    left: list[object] = []

    def noted(sleeper: Sleeper) -> None:
        left.append(sleeper)
        leave(sleeper)

    monkeypatch.setattr(waking, "begin", lambda: begin() if len(waking._line) < 4 else None)
    monkeypatch.setattr(waking, "leave", noted)
    began = time.monotonic()
    log.unlock()

    positions = [stored(sender) for sender in senders]

    assert time.monotonic() - began < 20  # the others have 30 s
    assert positions == sorted(positions)
    assert len(left) == 1


def test_where_one_who_was_woken_does_not_wake_the_next_the_own_thread_does(log: Log) -> None:
    """If a woken sender does not wake the next one, the append thread does.

    This happens if Ctrl-C comes at that very moment.
    """
    first = log.sender("a")
    log.appends._waking._is_under_way = True
    senders = [log.sender(name) for name in "bcd"]
    log.unlock()

    for sender in (first, *senders):
        assert len(stored(sender)) == 1
        assert sender.seconds < 20, "it was told so at its deadline only"
    log.appends.append(log.unit("e"))
    assert log.statements() == [["a"], ["b", "c", "d"], ["e"]]


SEED = int(os.environ.get("MQDB_GROUP_APPEND_SEED", "0")) or random.randrange(1_000_000)


def test_whoever_gives_up_meanwhile_each_has_an_answer_in_time_and_it_is_true(log: Log) -> None:
    """Each unit gets a true answer in time, whichever unit gives up.

    MQDB_GROUP_APPEND_SEED repeats the times of an earlier run; each run prints its seed.
    """
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    outcomes: dict[str, str] = {}

    def work(number: int, times: list[float]) -> None:
        for n, seconds in enumerate(times):
            unit = log.unit(f"{number}.{n}", seconds)
            try:
                log.appends.append(unit)
                outcome = "stored"
            except (SendGivenUp, BrokerUnavailable):  # its connection was cut, and there was no time for another
                outcome = "given up"
            except NoAnswer:
                outcome = "unknown"
            assert time.monotonic() < unit.deadline + 10
            outcomes[f"{number}.{n}"] = outcome

    times = [[chance.choice([0.05, 0.3, 1.0, 60.0]) for _ in range(30)] for _ in range(12)]
    threads = [Doing(partial(work, number, each)) for number, each in enumerate(times)]
    while any(thread.is_running for thread in threads):
        # The pauses are what is random: how long the log is free, and how long it is locked.
        log.unlock()
        time.sleep(chance.uniform(0.0, 0.1))
        if chance.random() < 0.3:
            log.locker.execute(STALL)
            time.sleep(chance.uniform(0.0, 0.6))
    for thread in threads:
        thread.result()

    rows = log.connection.execute("SELECT convert_from(body, 'UTF8') FROM mqdb.commit_log").fetchall()
    counts = Counter(row[0] for row in rows)
    sys.stdout.write(f"{dict(Counter(outcomes.values()))}\n")
    for body, outcome in outcomes.items():
        assert counts[body] in {"stored": {1}, "given up": {0}, "unknown": {0, 1}}[outcome], (body, outcome)
    assert Counter(outcomes.values())["stored"] > 100


def test_a_statement_carries_no_more_than_its_share(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_plan, "MAX_GATHERED_MESSAGES", 3)
    senders = [log.sender("a"), log.sender("b", count=2), *(log.sender(name) for name in "cdefg")]
    log.unlock()

    assert [len(stored(sender)) for sender in senders] == [1, 2, 1, 1, 1, 1, 1]
    assert log.statements() == [["a"], ["b", "b", "c"], ["d", "e", "f"], ["g"]]


def test_a_statement_carries_no_more_bytes_than_its_share(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_plan, "MAX_GATHERED_BYTES", 3_000)
    senders = [log.sender(name, size=1_200) for name in "abcd"] + [log.sender("e", size=10_000), log.sender("f")]
    log.unlock()

    for sender in senders:
        sender.result()
    assert log.statements() == [["a"], ["b", "c"], ["d"], ["e"], ["f"]]


def test_one_whose_records_cannot_be_made_fails_alone(log: Log) -> None:
    first = log.sender("a")
    second = log.sender("b")
    fault = BodyInvalid("cannot be read")
    third = log.begin(Given(fault, seconds=30))
    fourth = log.sender("d")
    log.unlock()

    assert third.error() is fault
    for sender in (first, second, fourth):
        assert len(stored(sender)) == 1
    assert log.statements() == [["a"], ["b", "d"]]


def test_a_thread_that_is_interrupted_where_it_must_not_send_is_refused_and_nobody_waits_for_ever(log: Log) -> None:
    """A thread interrupted at a point where it must not send is refused, and no thread waits for ever.

    A signal handler, or a finalizer called by the garbage collector, may send in the middle of another send.
    """
    refused: list[IllegalState] = []

    class Interrupted(Given):
        def make_records(self) -> None:
            super().make_records()
            for send in (log.appends.append, partial(log.appends.hand_in, done=lambda: None)):
                with pytest.raises(IllegalState, match="in the midst of another send") as refusal:
                    send(log.unit("x"))
                refused.append(refusal.value)

    first = log.sender("a")
    second = log.begin(Interrupted(log.records("b"), seconds=30))
    third = log.sender("c")
    log.unlock()

    for sender in (first, second, third):
        assert len(stored(sender)) == 1
    assert len(refused) == 2
    assert log.statements() == [["a"], ["b", "c"]]


def test_a_value_that_the_driver_refuses_beside_others_spoils_it_for_nobody(log: Log) -> None:
    """A value that the driver refuses does not affect the other units.

    The driver cannot determine the type of an array of numbers and booleans.
    """
    first = log.sender("a")
    second = log.sender("b")
    third = log.begin(Given([log.records("c")[0]._replace(flag=True)], seconds=30))
    fourth = log.sender("d")
    log.unlock()

    for sender in (first, second, third, fourth):
        assert len(stored(sender)) == 1


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


@pytest.mark.usefixtures("cancelled_early")
def test_what_is_handed_in_is_given_up_at_its_deadline(log: Log) -> None:
    done: SimpleQueue[Unit] = SimpleQueue()
    # The second has hardly any time left when the first one's statement is cancelled, after 1 s.
    for unit in (log.unit("a", seconds=4), log.unit("b", seconds=1.05)):
        log.appends.hand_in(unit, partial(done.put, unit))

    assert all(isinstance(done.get(timeout=10).error, SendGivenUp) for _ in "ab")
    log.unlock()
    assert log.statements() == []


def test_what_is_handed_in_does_not_wait_for_a_connection_longer_than_its_deadline() -> None:
    """An async send does not wait for a connection beyond its deadline.

    A retried send may have less time left than the leader.
    """
    done: SimpleQueue[str] = SimpleQueue()

    def refuse() -> Connection:
        raise BrokerUnavailable("127.0.0.1:1/nowhere", "refused")

    held = HeldConnection(refuse)
    held.open()
    wait_until(lambda: held.is_lost)
    appends = GroupAppend(held, Waking())
    appends.open()
    leader, other = Given([], seconds=60), Given([], seconds=0.1)
    appends.hand_in(leader, lambda: done.put("leader"))
    appends.hand_in(other, lambda: done.put("other"))
    wait_until(lambda: time.monotonic() > other.deadline)
    appends.end_late()

    assert done.get(timeout=10) == "other"
    assert isinstance(other.error, BrokerUnavailable)
    assert done.empty()
    held.close()
    assert done.get(timeout=10) == "leader"
    appends.close()


def test_what_is_handed_in_ends_at_its_deadline_while_the_statement_of_another_hangs(log: Log) -> None:
    done: SimpleQueue[str] = SimpleQueue()
    first = log.sender("1")
    leader, taken = log.unit("2", seconds=20), log.unit("3", seconds=3)
    log.appends.hand_in(leader, lambda: done.put("2"))
    log.appends.hand_in(taken, lambda: done.put("3"))
    log.unlock()
    assert len(stored(first)) == 1
    assert {done.get(timeout=10), done.get(timeout=10)} == {"2", "3"}

    log.locker.execute(STALL)
    leader, taken, waiting = (log.unit(name) for name in "456")
    free = log.occupy()
    log.appends.hand_in(leader, lambda: done.put("4"))
    log.appends.hand_in(taken, lambda: done.put("5"))
    free()
    wait_until(log.is_under_way)
    log.appends.hand_in(waiting, lambda: done.put("6"))
    taken.deadline = waiting.deadline = time.monotonic()
    log.appends.end_late()

    assert {done.get(timeout=10), done.get(timeout=10)} == {"5", "6"}
    assert isinstance(taken.error, NoAnswer)
    assert isinstance(waiting.error, SendGivenUp)
    log.unlock()
    assert done.get(timeout=10) == "4"
    log.appends.append(log.unit("7"))
    assert done.empty()
    assert log.statements()[-2:] == [["4", "5"], ["7"]]


def test_what_is_handed_in_is_not_stored_after_its_deadline(log: Log) -> None:
    """An async send is not stored after its deadline. A retried send may have less time left than the leader."""
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
    wait_until(lambda: log.appends._plan.is_closed)
    log.unlock()

    closing.result()
    assert list(chain.from_iterable(log.statements())) == ["a", "b"]
    assert done.qsize() == 2
