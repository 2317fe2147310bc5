"""Ctrl-C, the end of a producer and the end of one sender's time, each while others are under way."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mqdb.errors import IllegalState, SendGivenUp, SendOutcomeUnknown
from mqdb_client import Message, Producer, SendResult
from mqdb_client.group_append import GroupAppend
from mqdb_client.producer_hooks import SendMessageContext
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, link_of, pid_of, producer_of, stall, stored_bodies
from tests.fixtures.threads import Doing


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    """A producer that has sent a message already, so that it knows its topic."""
    with producer_of(database.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        yield producer


def sending(producer: Producer, body: str, seconds: float = 20) -> Doing[SendResult]:
    return Doing(partial(producer.send, Message("orders", body), timeout=timedelta(seconds=seconds)))


def waiting(producer: Producer) -> int:
    """How many wait for their turn to append."""
    return len(link_of(producer).appends._waiting)


def stalled(database: Database, producer: Producer, body: str, seconds: float) -> tuple[Any, Doing[SendResult]]:
    """A send that waits for a lock, so that others gather behind it; and the lock."""
    locker, pid = stall(database), pid_of(producer)
    doing = sending(producer, body, seconds)
    wait_until(lambda: is_blocked(database, pid))
    return locker, doing


# -- Ctrl-C -----------------------------------------------------------------------------------


def test_ctrl_c_right_after_the_answer_stores_nothing_twice(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    locker, first = stalled(database, producer, "ends soon", seconds=1)
    others: list[Doing[SendResult]] = []

    def gather() -> None:
        wait_until(lambda: waiting(producer) == 1)
        others.extend(sending(producer, f"other {number}") for number in range(3))
        wait_until(lambda: waiting(producer) == 4)
        # The main thread leads when the first one has given up, and takes the others along.
        assert isinstance(first.error(), SendGivenUp)
        wait_until(lambda: not waiting(producer))
        locker.rollback()

    succeed = GroupAppend._succeed

    def interrupted(appends: GroupAppend, units: list[Any], *answer: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        succeed(appends, units, *answer)

    monkeypatch.setattr(GroupAppend, "_succeed", interrupted)
    gathering = Doing(gather)
    with pytest.raises(KeyboardInterrupt):
        producer.send(Message("orders", "interrupted"))
    gathering.result()

    assert all(isinstance(other.result(), SendResult) for other in others)
    assert Counter(stored_bodies(database)) == Counter(["first", "interrupted", *(f"other {n}" for n in range(3))])


class Interrupting:
    """Ctrl-C in the middle of a send."""

    hook_name = "interrupting"

    def check_forbidden(self, context: SendMessageContext) -> None:
        if context.message.body == b"interrupted":
            raise KeyboardInterrupt


@pytest.mark.parametrize("mode", ["send_async", "send_oneway"])
def test_ctrl_c_in_a_send_that_nobody_waits_for_does_not_hold_up_the_end(database: Database, mode: str) -> None:
    producer = producer_of(database.dsn)
    producer.start()
    producer.register_check_forbidden_hook(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        getattr(producer, mode)(Message("orders", "interrupted"))
    producer.send_async(Message("orders", "second")).result(10)

    Doing(producer.shutdown).result()

    assert stored_bodies(database) == ["second"]


# -- the end of a producer --------------------------------------------------------------------


def test_shutdown_lets_nobody_in_who_still_waits_for_room(database: Database) -> None:
    producer = producer_of(database.dsn, "20s", back_pressure_for_async_send_num=1)
    producer.start()
    producer.send(Message("orders", "first"))
    locker, pid = stall(database), pid_of(producer)
    under_way = producer.send_async(Message("orders", "under way"))
    wait_until(lambda: is_blocked(database, pid))
    late = Doing(lambda: producer.send_async(Message("orders", "late")))
    assert producer._running is not None
    permits = producer._running._permits
    wait_until(lambda: len(permits._changed._waiters) == 1)  # type: ignore[attr-defined]
    ending = Doing(producer.shutdown)

    assert isinstance(late.error(), IllegalState)
    locker.rollback()
    ending.result()
    assert isinstance(under_way.result(0), SendResult)
    assert stored_bodies(database) == ["first", "under way"]


def test_a_first_async_send_at_the_moment_of_the_end_leaves_no_thread(database: Database) -> None:
    threads = set(threading.enumerate())
    producer = producer_of(database.dsn)
    producer.start()
    running = producer._running
    assert running is not None
    producer.shutdown()

    with pytest.raises(IllegalState, match="shut down"):
        _ = running.async_send
    assert set(threading.enumerate()) == threads


def test_where_no_thread_can_be_started_the_other_sends_go_on(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "mqdb-group-append":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        producer.send_async(Message("orders", "x")).result(10)

    assert isinstance(sending(producer, "second").result(), SendResult)


# -- the end of one sender's time -------------------------------------------------------------


def test_one_whose_time_ends_in_the_statement_of_another_can_ask_what_became_of_it(
    database: Database, producer: Producer
) -> None:
    locker, first = stalled(database, producer, "first of all", seconds=1)
    leader = sending(producer, "leader")
    wait_until(lambda: waiting(producer) == 1)
    short = sending(producer, "short", seconds=2)
    wait_until(lambda: waiting(producer) == 2)
    assert isinstance(first.error(), SendGivenUp)

    error = short.error()

    assert isinstance(error, SendOutcomeUnknown)
    # It ends the statement: what is not stored by then never will be.
    assert producer.outcome(error.message_ids[0]) is None
    locker.rollback()
    leader.result()
    assert stored_bodies(database) == ["first", "leader"]


def test_one_whose_time_ends_while_a_refused_statement_is_repeated_in_parts_is_known_not_to_be_stored(
    database: Database, producer: Producer
) -> None:
    database.connect().execute(
        """CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN PERFORM pg_sleep(1); RAISE EXCEPTION 'poison' USING ERRCODE = '22P05'; END $$;
           CREATE TRIGGER fault BEFORE INSERT ON mqdb.commit_log FOR EACH ROW WHEN (NEW.body = 'poison')
           EXECUTE FUNCTION fault()"""
    )
    locker, first = stalled(database, producer, "first of all", seconds=20)
    poison = sending(producer, "poison")
    wait_until(lambda: waiting(producer) == 1)
    others = [sending(producer, f"other {number}") for number in range(2)]
    wait_until(lambda: waiting(producer) == 3)
    short = sending(producer, "short", seconds=1.5)
    wait_until(lambda: waiting(producer) == 4)
    locker.rollback()

    # The statement of all four is refused after 1 s, its first half after another one: 'short' is in the second.
    assert isinstance(short.error(), SendGivenUp)
    poison.error()
    for doing in (first, *others):
        doing.result()
    assert sorted(stored_bodies(database)) == ["first", "first of all", "other 0", "other 1"]


def test_an_async_send_with_hardly_any_time_left_begins_no_statement_for_others(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, pid = link_of(producer).connection, pid_of(producer)
    connect, connections = held._connect, itertools.count()

    def counted() -> Any:
        next(connections)
        return connect()

    monkeypatch.setattr(held, "_connect", counted)
    locker = stall(database)
    # The first one's statement is cancelled when 0.2 s are left; the second has less than a twentieth of its time then.
    futures = [producer.send_async(Message("orders", "late"), timeout=timedelta(seconds=2))]
    wait_until(lambda: is_blocked(database, pid))
    futures.append(producer.send_async(Message("orders", "late"), timeout=timedelta(seconds=1.86)))
    other = sending(producer, "other")
    wait_until(lambda: waiting(producer) == 2)

    for future in futures:
        assert isinstance(future.exception(10), SendGivenUp)
    locker.rollback()

    other.result()
    assert next(connections) == 1
    assert stored_bodies(database) == ["first", "other"]


def test_what_is_remembered_of_an_open_outcome_does_not_keep_the_message(database: Database) -> None:
    with producer_of(database.dsn, "600ms") as producer, suppress(SendGivenUp):
        producer.send(Message("orders", "first"))
        locker, first = stalled(database, producer, "first of all", seconds=0.4)
        leader = sending(producer, "leader", seconds=20)
        wait_until(lambda: waiting(producer) == 1)
        error = sending(producer, "short", seconds=0.6).error()
        first.error()
        locker.rollback()
        leader.result()

        assert isinstance(error, SendOutcomeUnknown)
        assert producer._running is not None
        remembered = producer._running.sending.unknown._sends.values()
        assert [send.outcome.__traceback__ for send in remembered] == [None]
