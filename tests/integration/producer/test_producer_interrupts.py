"""Ctrl-C, the end of a producer, and the time-out of one sender, each while other sends are under way."""

import itertools
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import psycopg
import pytest

from mqdb.errors import IllegalState, SendGivenUp, SendOutcomeUnknown
from mqdb.process.signals import handled
from mqdb_client import Message, Producer, SendResult
from mqdb_client.producer import running_producer
from mqdb_client.producer.append import append_plan, held_connection
from mqdb_client.producer.append.append_plan import AppendPlan
from mqdb_client.producer.sends.async_send import AsyncSend
from mqdb_client.producer.sends.send_hooks import SendMessageContext
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, link_of, pid_of, producer_of, stall, stored_bodies
from tests.fixtures.threads import Doing, refuse_threads

#: For `before_storing`.
WAIT = "PERFORM pg_advisory_xact_lock(17);"


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    """A producer that has already sent a message, so that the route of its topic is loaded."""
    with producer_of(database.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        yield producer


def test_a_thread_that_is_interrupted_where_it_begins_to_send_async_is_refused(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(AsyncSend):
        def __init__(self, *arguments: Any) -> None:
            with pytest.raises(IllegalState, match="in the midst of another send"):
                producer.send_oneway(Message("orders", "by the interruption"))
            super().__init__(*arguments)

    monkeypatch.setattr(running_producer, "AsyncSend", Interrupted)

    assert producer.send_async(Message("orders", "second")).result(30).log_pos > 0


def sending(producer: Producer, body: str, seconds: float = 20) -> Doing[SendResult]:
    return Doing(partial(producer.send, Message("orders", body), timeout=timedelta(seconds=seconds)))


def waiting(producer: Producer) -> int:
    """The number of sends that wait for their turn to append."""
    return len(link_of(producer).appends._plan.waiting)


def stalled(database: Database, producer: Producer, body: str) -> tuple[Any, Doing[SendResult]]:
    """A send that waits for a lock, so that others gather behind it; returned with the lock."""
    locker, pid = stall(database), pid_of(producer)
    doing = sending(producer, body)
    wait_until(lambda: is_blocked(database, pid))
    return locker, doing


def before_storing(database: Database, body: str, statements: str) -> psycopg.Connection[Any]:
    """Make the database execute these PL/pgSQL statements before it stores this body.

    A WAIT in the statements waits until the returned connection rolls back.
    """
    database.connect().execute(
        f"""CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {statements} RETURN NEW; END $$;
            CREATE TRIGGER fault BEFORE INSERT ON mqdb.commit_log FOR EACH ROW WHEN (NEW.body = '{body}')
            EXECUTE FUNCTION fault()""".encode()
    )
    holder = database.connect(autocommit=False)
    holder.execute("SELECT pg_advisory_xact_lock(17)")
    return holder


# -- Ctrl-C -----------------------------------------------------------------------------------


def test_ctrl_c_right_after_the_answer_stores_nothing_twice(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = link_of(producer)
    has_turn = threading.Event()
    others: list[Doing[SendResult]] = []

    def gather() -> None:
        # The main thread leads, and takes those along who come while it waits for the connection.
        with link.connection._turn:
            has_turn.set()
            wait_until(lambda: link.appends._plan.is_busy)
            others.extend(sending(producer, f"other {number}") for number in range(3))
            wait_until(lambda: waiting(producer) == 3)

    stored = AppendPlan.stored

    def interrupted(plan: AppendPlan, units: list[Any], *answer: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        stored(plan, units, *answer)

    monkeypatch.setattr(AppendPlan, "stored", interrupted)
    gathering = Doing(gather)
    has_turn.wait()
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


def interrupted(main: int, seconds: float, work: Callable[[], object]) -> None:
    """Repeat the work until Ctrl-C has interrupted it."""
    interrupter = threading.Timer(seconds, signal.pthread_kill, [main, signal.SIGINT])
    has_come = False

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        nonlocal has_come
        has_come = True
        raise KeyboardInterrupt

    with handled([signal.SIGINT], interrupt):
        try:
            interrupter.start()
            # Until it has come, not until it is sent, after which Python may raise it late; nor until it is raised, for
            # in a callback of a weak reference Python ignores it.
            while not has_come:
                work()
        except KeyboardInterrupt:
            pass
        interrupter.join()


def test_ctrl_c_again_and_again_in_a_loop_of_async_sends_leaves_no_permit_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated Ctrl-C in a loop of async sends leaves no permit behind.

    The moments are random, and each run prints its seed.
    """
    seed = random.randrange(1_000_000)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    main = threading.main_thread().ident
    assert main is not None
    hook = sys.unraisablehook
    monkeypatch.setattr(sys, "unraisablehook", lambda what: what.exc_type is KeyboardInterrupt or hook(what))
    for number in range(3):
        producer = producer_of(database.dsn, "20s", group=f"group-{number}", back_pressure_for_async_send_num=50)
        producer.start()
        producer.send(Message("orders", "first"))
        for _ in range(20):
            interrupted(main, chance.uniform(0.0, 0.003), partial(producer.send_async, Message("orders", "x")))

        Doing(producer.shutdown).result()


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
    wait_until(lambda: bool(permits._waiting))
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


def test_where_no_thread_can_be_started_the_producer_leaves_nothing_behind_and_can_be_started_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    producer = producer_of(database.dsn)
    with monkeypatch.context() as patch:
        refuse_threads(patch, "mqdb-group-append")
        with pytest.raises(RuntimeError, match="new thread"):
            producer.start()
    assert set(threading.enumerate()) == threads

    with producer:
        producer.send(Message("orders", "later"))
    assert stored_bodies(database) == ["later"]


def test_where_no_thread_can_be_started_for_async_sends_the_others_go_on(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    with monkeypatch.context() as patch:
        refuse_threads(patch, "judging-1")
        with pytest.raises(RuntimeError, match="new thread"):
            producer.send_async(Message("orders", "x"))
    assert set(threading.enumerate()) == threads

    assert isinstance(sending(producer, "second").result(), SendResult)
    producer.send_async(Message("orders", "third")).result(20)
    assert stored_bodies(database) == ["first", "second", "third"]


# -- the end of one sender's time -------------------------------------------------------------


def test_one_whose_time_ends_in_the_statement_of_another_can_ask_what_became_of_it(
    database: Database, producer: Producer
) -> None:
    holder = before_storing(database, "leader", WAIT)
    locker, first = stalled(database, producer, "first of all")
    leader = sending(producer, "leader")
    wait_until(lambda: waiting(producer) == 1)
    short = sending(producer, "short", seconds=3)
    wait_until(lambda: waiting(producer) == 2)
    locker.rollback()
    first.result()

    error = short.error()

    assert isinstance(error, SendOutcomeUnknown)
    # It ends the statement: what is not stored by then never will be.
    assert producer.outcome(error.message_ids[0]) is None
    holder.rollback()
    leader.result()
    assert stored_bodies(database) == ["first", "first of all", "leader"]


def test_one_whose_time_ends_while_a_refused_statement_is_repeated_in_parts_is_known_not_to_be_stored(
    database: Database, producer: Producer
) -> None:
    database.connect().execute("CREATE SEQUENCE public.tries")  # no rollback takes a number of it back
    refuse = "RAISE EXCEPTION 'poison' USING ERRCODE = '22P05';"
    holder = before_storing(database, "poison", f"IF nextval('public.tries') > 1 THEN {WAIT} END IF; {refuse}")
    locker, first = stalled(database, producer, "first of all")
    poison = sending(producer, "poison")
    wait_until(lambda: waiting(producer) == 1)
    others = [sending(producer, f"other {number}") for number in range(2)]
    wait_until(lambda: waiting(producer) == 3)
    short = sending(producer, "short", seconds=3)
    wait_until(lambda: waiting(producer) == 4)
    locker.rollback()

    # The statement of all four is refused at once, its first half waits: 'short' is in the second.
    assert isinstance(short.error(), SendGivenUp)
    holder.rollback()
    poison.error()
    for doing in (first, *others):
        doing.result()
    assert sorted(stored_bodies(database)) == ["first", "first of all", "other 0", "other 1"]


@pytest.mark.usefixtures("cancelled_early")
def test_an_async_send_with_hardly_any_time_left_begins_no_statement_for_others(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, pid = link_of(producer).connection, pid_of(producer)
    connect, connections = held._connect, itertools.count()

    def counted() -> Any:
        next(connections)
        return connect()

    monkeypatch.setattr(held, "_connect", counted)
    # So that whole seconds lie between "hardly any" and enough.
    monkeypatch.setattr(append_plan, "_SHARE_TO_LEAD", 0.75)
    locker = stall(database)
    # The first one's statement is cancelled after 2 s: the second has a third of its time left then, the other most.
    futures = [producer.send_async(Message("orders", "late"), timeout=timedelta(seconds=8))]
    wait_until(lambda: is_blocked(database, pid))
    futures.append(producer.send_async(Message("orders", "late"), timeout=timedelta(seconds=3)))
    other = sending(producer, "other", seconds=60)
    wait_until(lambda: waiting(producer) == 2)

    for future in futures:
        assert isinstance(future.exception(10), SendGivenUp)
    locker.rollback()

    other.result()
    assert next(connections) == 1
    assert stored_bodies(database) == ["first", "other"]


def test_what_is_remembered_of_an_open_outcome_does_not_keep_the_message(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server is not asked to cancel, so it cannot say that it has stopped.
    monkeypatch.setattr(held_connection, "_SHARE_FOR_CANCELLING", 0.0)
    stall(database)

    error = sending(producer, "open", seconds=1).error()

    assert isinstance(error, SendOutcomeUnknown)
    assert producer._running is not None
    remembered = producer._running.sending.unknown._sends.values()
    assert [send.outcome.__traceback__ for send in remembered] == [None]
