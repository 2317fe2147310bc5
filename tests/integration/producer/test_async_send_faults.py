"""Async sends whose connection is lost: unknown outcomes are found out, and no message is lost or stored twice."""

import itertools
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from mqdb.broker.log.outcome import StoredAt
from mqdb.errors import MqdbError, SendGivenUp, SendOutcomeUnknown
from mqdb_client import Message, Producer, SendResult, SendStatus
from mqdb_client.producer.append.append_plan import NoAnswer
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.sends import settling
from mqdb_client.producer.sends.unknown import settle
from tests.fixtures.async_sends import SECONDS, error_of
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import (
    attempts_of,
    is_blocked,
    pid_of,
    producer_of,
    settled_outcome,
    stall,
    stored_bodies,
    terminate,
)
from tests.fixtures.proxy import Proxy
from tests.fixtures.threads import Doing

pytestmark = pytest.mark.usefixtures("both_kinds")


@pytest.fixture
def producer(warm_producer: Producer) -> Producer:
    return warm_producer


def test_a_lost_connection_costs_no_message_and_doubles_none(database: Database, producer: Producer) -> None:
    attempts = attempts_of(producer)
    locker = stall(database)
    pid = pid_of(producer)
    futures = [producer.send_async(Message("orders", str(n))) for n in range(300)]
    wait_until(lambda: is_blocked(database, pid))
    terminate(database, pid)
    locker.rollback()

    assert {future.result(SECONDS).status for future in futures} == {SendStatus.SEND_OK}
    assert Counter(stored_bodies(database)) == Counter(["first", *map(str, range(300))])
    assert len(attempts.begun) > 300


def test_a_send_whose_answer_was_lost_is_found_and_not_stored_again(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn, "20s") as producer:
        producer.send(Message("orders", "first"))
        pid = pid_of(producer)
        locker = stall(database)
        future = producer.send_async(Message("orders", "x"))
        wait_until(lambda: is_blocked(database, pid))
        proxy.freeze()
        locker.rollback()
        wait_until(lambda: stored_bodies(database) == ["first", "x"])
        proxy.cut()
        proxy.restore()

        result = future.result(SECONDS)

    assert database.connect().execute("SELECT max(log_pos) FROM mqdb.commit_log").fetchone() == (result.log_pos,)
    assert stored_bodies(database) == ["first", "x"]


def test_what_a_lost_connection_leaves_open_is_looked_for_together(
    database: Database, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[int] = []

    def counted(
        link: BrokerLink, unknown: NoAnswer, unique_ids: Sequence[UUID], deadline: float, late: MqdbError
    ) -> dict[UUID, StoredAt]:
        looked_for.append(len(unique_ids))
        return settle(link, unknown, unique_ids, deadline, late)

    def is_stalled_on_another(lost: int) -> bool:
        return pid_of(producer) != lost and is_blocked(database, pid_of(producer))

    monkeypatch.setattr(settling, "settle", counted)
    locker, pid = stall(database), pid_of(producer)
    patient = partial(producer.send_async, timeout=timedelta(seconds=SECONDS))
    futures = [patient(Message("orders", "0"))]
    wait_until(lambda: is_blocked(database, pid))
    futures += [patient(Message("orders", str(number))) for number in range(1, 2_500)]
    for _ in range(2):  # the first one's statement, and then that of those who have gathered
        lost = pid_of(producer)
        terminate(database, lost)
        wait_until(partial(is_stalled_on_another, lost))
    locker.rollback()

    assert len({future.result(SECONDS).log_pos for future in futures}) == 2_500
    assert Counter(stored_bodies(database)[1:]) == Counter(map(str, range(2_500)))
    assert (sum(looked_for) > 1_000, len(looked_for) < 20) == (True, True)


def test_an_open_outcome_reaches_the_future_and_can_be_asked_for(database: Database, proxy: Proxy) -> None:
    with producer_of(proxy.dsn) as producer:
        producer.send(Message("orders", "first"))
        proxy.freeze()
        error = error_of(producer.send_async(Message("orders", "never"), timeout=timedelta(seconds=2)))
        proxy.cut()
        proxy.restore()

        assert isinstance(error, SendOutcomeUnknown)
        assert settled_outcome(producer, error.message_ids[0]) is None
    assert stored_bodies(database) == ["first"]


SEED = int(os.environ.get("MQDB_ASYNC_SEED", "0")) or random.randrange(1_000_000)
ROUNDS = 8


def test_whatever_breaks_under_way_each_future_ends_and_what_is_acknowledged_is_stored_once(
    database: Database, proxy: Proxy
) -> None:
    """Each future ends, and an acknowledged message is stored once, whatever breaks.

    MQDB_ASYNC_SEED repeats the faults of an earlier run; each run prints its seed.
    """
    sys.stdout.write(f"seed {SEED}\n")
    chance = random.Random(SEED)
    create_topic(database.connect(), "orders", 4)
    futures: dict[str, Future[SendResult]] = {}
    stop = threading.Event()
    with producer_of(proxy.dsn, "5s", back_pressure_for_async_send_num=300) as producer:

        def work(number: int) -> None:
            for n in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
                body = f"{number}.{n}"
                with suppress(SendGivenUp):
                    futures[body] = producer.send_async(Message("orders", body))

        threads = [Doing(partial(work, number)) for number in range(2)]
        for _ in range(ROUNDS):
            target = len(futures) + chance.randrange(50, 500)
            wait_until(lambda target=target: len(futures) > target, SECONDS)  # type: ignore[misc]
            break_something(chance, database, proxy, producer)
        stop.set()
        for thread in threads:
            thread.result()
        assert not wait(futures.values(), SECONDS).not_done

    places = places_of(database)
    outcomes = Counter(checked_outcome(future, body, places) for body, future in futures.items())
    sys.stdout.write(f"{dict(outcomes)}\n")
    assert outcomes["SendResult"] > 400


def places_of(database: Database) -> dict[str, list[int]]:
    """The positions of each body in the log."""
    places: dict[str, list[int]] = {}
    rows = database.connect().execute("SELECT convert_from(body, 'UTF8'), log_pos FROM mqdb.commit_log")
    for body, log_pos in rows:
        places.setdefault(body, []).append(log_pos)
    return places


def checked_outcome(future: "Future[SendResult]", body: str, places: dict[str, list[int]]) -> str:
    """The outcome of a message according to its future, which must be true."""
    stored, error = places.get(body, []), future.exception()
    if error is None:
        assert stored == [future.result().log_pos]
    elif isinstance(error, SendOutcomeUnknown):
        assert len(stored) <= 1
    else:
        assert isinstance(error, MqdbError)
        assert stored == []
    return type(error or future.result()).__name__


def break_something(chance: random.Random, database: Database, proxy: Proxy, producer: Producer) -> None:
    match chance.choice(["terminate", "cut", "terminate while blocked", "lost answer"]):
        case "terminate":
            terminate(database, pid_of(producer))
        case "cut":
            proxy.cut()
            proxy.restore()
        case "terminate while blocked":
            locker, pid = stall(database), blocked_pid_of(producer, database)
            terminate(database, pid)
            locker.rollback()
        case "lost answer":
            locker, pid = stall(database), blocked_pid_of(producer, database)
            proxy.freeze()
            locker.rollback()
            wait_until(lambda: not is_blocked(database, pid))
            proxy.cut()
            proxy.restore()


def blocked_pid_of(producer: Producer, database: Database) -> int:
    """The pid of the backend in an append; until then the producer may have a backend whose loss was not noticed."""
    wait_until(lambda: is_blocked(database, pid_of(producer)))
    return pid_of(producer)
