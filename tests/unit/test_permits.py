"""Permits of async sends: Ctrl-C at any moment leaves no permit taken and no lock held."""

import threading
import time
from datetime import UTC, datetime
from functools import partial
from itertools import count

from mqdb.common.unique_id import UniqueIdGenerator
from mqdb_client import Message
from mqdb_client.producer.queues.queue_choice import ANYWHERE
from mqdb_client.producer.sends.async_send import Permits, _AsyncSend
from mqdb_client.producer.sends.send_hooks import SendMode
from mqdb_client.producer.sends.sending import PendingSend
from tests.fixtures.interrupts import interrupted_at
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

MODULES = ("mqdb_client.producer.sends.async_send",)


def new_send(permits: Permits) -> _AsyncSend:
    messages, now = (Message("orders", "x"),), datetime.now(UTC)
    pending = PendingSend(messages, UniqueIdGenerator(), now, ANYWHERE, SendMode.ASYNC, 1.0, 0.0, 1.0)
    return _AsyncSend(pending, permits, None)


def check_all_is_given_back(permits: Permits, send: _AsyncSend, number: int) -> None:
    # threading has no public word for who holds an RLock.
    assert not permits._guard._is_owned(), f"Ctrl-C at {number} leaves it locked"  # type: ignore[attr-defined]
    permits.release(send)
    assert (permits._messages, permits._bytes) == (0, 0), f"Ctrl-C at {number} leaves a permit behind"


def test_ctrl_c_at_any_moment_of_an_acquire_leaves_no_permit_behind_and_no_lock_held() -> None:
    for number in count(1):
        permits = Permits(10, 1_000)
        send = new_send(permits)
        was_interrupted = interrupted_at(number, partial(permits.acquire, send, time.monotonic() + 1), MODULES)
        check_all_is_given_back(permits, send, number)
        if not was_interrupted:
            break
    assert number > 2


def test_ctrl_c_at_any_moment_of_a_wait_for_room_is_raised_as_such_and_keeps_nobody_else_waiting() -> None:
    for number in count(1):
        permits = Permits(1, 1_000)
        first, second, third = (new_send(permits) for _ in range(3))
        is_over = threading.Event()
        assert permits.acquire(first, time.monotonic() + 1)

        def make_room(
            permits: Permits = permits, first: _AsyncSend = first, is_over: threading.Event = is_over
        ) -> None:
            wait_until(lambda: bool(permits._waiting) or is_over.is_set())
            permits.release(first)

        releasing = Doing(make_room)
        acquire = partial(permits.acquire, second, time.monotonic() + 30)
        was_interrupted = interrupted_at(number, acquire, (*MODULES, "threading"), after_c=True)
        is_over.set()
        releasing.result()
        permits.release(second)
        assert permits.acquire(third, time.monotonic() + 1)
        check_all_is_given_back(permits, third, number)
        if not was_interrupted:
            break
    assert number > 10


def test_a_release_can_be_repeated_wherever_ctrl_c_came_in_the_first_one() -> None:
    for number in count(1):
        permits = Permits(10, 1_000)
        send = new_send(permits)
        assert permits.acquire(send, time.monotonic() + 1)
        was_interrupted = interrupted_at(number, partial(permits.release, send), MODULES)
        check_all_is_given_back(permits, send, number)
        if not was_interrupted:
            break
    assert number > 2
