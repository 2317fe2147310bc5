"""Permits of async sends: Ctrl-C at any moment leaves none behind, and no lock held."""

import time
from datetime import UTC, datetime
from functools import partial
from itertools import count

from mqdb.common.unique_id import UniqueIdGenerator
from mqdb_client import Message
from mqdb_client.producer.async_send import Permits, _Handed
from mqdb_client.producer.queue_choice import ANYWHERE
from mqdb_client.producer.send_hooks import SendMode
from mqdb_client.producer.sending import PendingSend
from tests.fixtures.interrupts import interrupted_at

MODULES = ("mqdb_client.producer.async_send",)


def new_handed() -> _Handed:
    messages, now = (Message("orders", "x"),), datetime.now(UTC)
    return _Handed(PendingSend(messages, UniqueIdGenerator(), now, ANYWHERE, SendMode.ASYNC, 1.0, 0.0, 1.0), None)


def check_all_is_given_back(permits: Permits, handed: _Handed, number: int) -> None:
    # threading has no public word for who holds an RLock.
    assert not permits._guard._is_owned(), f"Ctrl-C at {number} leaves it locked"  # type: ignore[attr-defined]
    permits.release(handed)
    assert (permits._messages, permits._bytes) == (0, 0), f"Ctrl-C at {number} leaves a permit behind"


def test_ctrl_c_at_any_moment_of_an_acquire_leaves_no_permit_behind_and_no_lock_held() -> None:
    for number in count(1):
        permits, handed = Permits(10, 1_000), new_handed()
        was_interrupted = interrupted_at(number, partial(permits.acquire, handed, time.monotonic() + 1), MODULES)
        check_all_is_given_back(permits, handed, number)
        if not was_interrupted:
            break
    assert number > 3


def test_a_release_can_be_repeated_wherever_ctrl_c_came_in_the_first_one() -> None:
    for number in count(1):
        permits, handed = Permits(10, 1_000), new_handed()
        assert permits.acquire(handed, time.monotonic() + 1)
        was_interrupted = interrupted_at(number, partial(permits.release, handed), MODULES)
        check_all_is_given_back(permits, handed, number)
        if not was_interrupted:
            break
    assert number > 3
