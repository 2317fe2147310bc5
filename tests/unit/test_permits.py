"""Permits of async sends: Ctrl-C at any moment leaves none behind, and no lock held."""

import time

from mqdb_client import Message
from mqdb_client.producer.async_send import Permits, _Handed
from tests.fixtures.interrupts import interrupted_at

MODULES = ("mqdb_client.producer.async_send",)


class Delivery:
    """What permits look at."""

    def __init__(self) -> None:
        self.messages = (Message("orders", "x"),)


def check_all_is_given_back(permits: Permits, handed: _Handed, number: int) -> None:
    assert not permits._guard._is_owned(), f"Ctrl-C at {number} leaves it locked"  # type: ignore[attr-defined]
    permits.release(handed)
    assert (permits._messages, permits._bytes) == (0, 0), f"Ctrl-C at {number} leaves a permit behind"


def test_ctrl_c_at_any_moment_of_an_acquire_leaves_no_permit_behind_and_no_lock_held() -> None:
    number = 1
    while True:
        permits, handed = Permits(10, 1_000), _Handed(Delivery(), None)  # type: ignore[arg-type]
        was_interrupted = interrupted_at(
            number,
            lambda: permits.acquire(handed, time.monotonic() + 1),  # noqa: B023
            MODULES,
        )
        check_all_is_given_back(permits, handed, number)
        if not was_interrupted:
            break
        number += 1
    assert number > 3


def test_a_release_can_be_repeated_wherever_ctrl_c_came_in_the_first_one() -> None:
    number = 1
    while True:
        permits, handed = Permits(10, 1_000), _Handed(Delivery(), None)  # type: ignore[arg-type]
        assert permits.acquire(handed, time.monotonic() + 1)
        was_interrupted = interrupted_at(number, lambda: permits.release(handed), MODULES)  # noqa: B023
        check_all_is_given_back(permits, handed, number)
        if not was_interrupted:
            break
        number += 1
    assert number > 3
