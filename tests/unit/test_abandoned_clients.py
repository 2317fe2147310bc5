"""The thread that looks for abandoned clients keeps running, whatever error a check raises."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakSet

import pytest

from mqdb_client.abandoned_clients import closed_loops, watch


def left(find_reason: Callable[[], str | None] = lambda: "nobody can use it") -> threading.Event:
    """An event that is set once a client, watched from now on, has been found abandoned and has left."""
    has_left = threading.Event()
    watch("a client", find_reason, has_left.set)
    return has_left


def test_a_loop_that_is_noted_during_a_look_is_seen_by_the_next_one() -> None:
    loops: WeakSet[Any] = WeakSet()
    kept: list[object] = []

    class Loop:
        def is_closed(self) -> bool:
            if len(kept) < 3:  # as another thread would
                kept.append(Loop())
                loops.add(kept[-1])
            return True

    loops.add(loop := Loop())
    noted = left(lambda: closed_loops(cast("WeakSet[asyncio.AbstractEventLoop]", loops)))
    other = left()

    assert other.wait(30)
    assert noted.wait(30)
    assert len(kept) == 3
    del loop


def test_a_client_leaves_later_if_there_are_no_new_threads_now(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[threading.Thread] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "mqdb-abandoned" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert left().wait(30)
    assert len(refused) == 1
