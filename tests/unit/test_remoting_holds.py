"""Held pulls: which events wake them, and how often."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqdb.common.message import MessageQueue
from mqdb.common.wake_limit import BURST
from mqdb.remoting.consuming.holds import Holds, Wake
from mqdb.remoting.consuming.places import Place
from mqdb.remoting.consuming.readings import Reading

T = TypeVar("T")


def reading(queue_key: int = 1) -> Reading:
    return Reading("readers", Place(MessageQueue("orders", "broker-a", 0), queue_key, 7), 7)


def run(test: Callable[[Holds], Awaitable[T]]) -> T:
    async def in_loop() -> T:
        return await test(Holds(asyncio.get_running_loop()))

    return asyncio.run(in_loop())


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


def test_an_arrival_between_the_look_and_the_wait_ends_the_wait() -> None:
    async def test(holds: Holds) -> Wake:
        hold = holds.enter(reading())
        holds.arrived([1])
        return await hold.wait(soon())

    assert run(test) is Wake.ARRIVED


def test_arrivals_of_other_queues_and_holds_that_have_left_mean_nothing() -> None:
    async def test(holds: Holds) -> Wake:
        holds.leave(holds.enter(reading()))
        hold = holds.enter(reading(2))
        holds.arrived([1])
        return await hold.wait(asyncio.get_running_loop().time() + 0.01)

    assert run(test) is Wake.TIME_OVER


def test_what_a_client_has_to_be_told_goes_before_an_arrival() -> None:
    async def test(holds: Holds) -> Wake:
        one = reading()
        hold = holds.enter(one)
        holds.wake(Wake.LOST, lambda each: each is one)
        holds.arrived(None)
        return await hold.wait(soon())

    assert run(test) is Wake.LOST


def test_arrivals_in_vain_wake_a_pull_ten_times_a_second_at_most() -> None:
    async def test(holds: Holds) -> tuple[int, bool]:
        hold, woken = holds.enter(reading()), 0
        for _ in range(10 * BURST):
            holds.arrived([1])
            woken += hold.reason is not None
            hold.reason = None
        return woken, await hold.wait(soon()) is Wake.ARRIVED  # none is forgotten

    woken, comes_late = run(test)

    assert BURST <= woken <= BURST + 2
    assert comes_late
