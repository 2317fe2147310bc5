"""Threads that do the same work: their number is as configured, and each one finishes its piece of work."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from mqdb_client.consumer.listeners.worker_threads import WorkerThreads
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import refuse_threads


class Works:
    """Pieces of work that end when the test says so, and a count of those that have begun."""

    def __init__(self) -> None:
        self._line: SimpleQueue[threading.Event | None] = SimpleQueue()
        self.running: list[threading.Event] = []
        self.threads = WorkerThreads("worker", self._work, lambda: self._line.put(None), 3)

    def add(self, count: int) -> list[threading.Event]:
        """Add `count` pieces of work; each ends when its event is set."""
        works = [threading.Event() for _ in range(count)]
        for work in works:
            self._line.put(work)
        return works

    def _work(self) -> None:
        work = self._line.get()
        if work is not None:
            self.running.append(work)
            assert work.wait(10)
            self.running.remove(work)


@pytest.fixture
def works() -> Iterator[Works]:
    works = Works()
    works.threads.start()
    works.threads.begin()
    yield works
    for work in works.running:
        work.set()
    assert works.threads.stop(10) == 0


def test_as_much_is_done_at_once_as_there_are_threads(works: Works) -> None:
    pieces = works.add(5)
    wait_until(lambda: len(works.running) == 3)

    works.threads.resize(5)
    wait_until(lambda: len(works.running) == 5)

    for piece in pieces:
        piece.set()


def test_threads_that_are_too_many_end_when_their_work_is_done(works: Works) -> None:
    first = works.add(3)
    wait_until(lambda: len(works.running) == 3)
    works.threads.resize(1)
    for piece in first:
        piece.set()
    second = works.add(2)
    wait_until(lambda: works.running == second[:1])

    second[0].set()
    wait_until(lambda: works.running == second[1:])
    second[1].set()


def test_a_thread_that_waits_for_work_ends_at_once(works: Works) -> None:
    assert works.threads.stop(10) == 0


def test_a_thread_that_is_at_work_is_left_behind(works: Works) -> None:
    [piece] = works.add(1)
    wait_until(lambda: works.running)

    # The other two may need longer to notice.
    wait_until(lambda: works.threads.stop(0.01) == 1)
    piece.set()


# -- a system that has no threads left ----------------------------------------------------------


def test_where_not_all_can_be_started_there_are_as_many_as_before(
    works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_threads(monkeypatch, "worker", but=2)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        works.threads.resize(6)

    assert works.threads.thread_nums == 3
    wait_until(lambda: running() == 3)
    monkeypatch.undo()
    works.threads.resize(4)
    assert running() == 4


def test_a_start_that_fails_leaves_nothing_that_cannot_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works()
    refuse_threads(monkeypatch, "worker", but=2)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        works.threads.start()

    assert works.threads.stop(10) == 0
    assert running() == 0


def test_none_is_started_after_the_stop(works: Works) -> None:
    """No thread starts after the stop. A user may set a higher number of threads while the consumer shuts down."""
    works.threads.stop(10)

    works.threads.resize(5)

    assert running() == 0


def running() -> int:
    return sum(thread.name.startswith("worker-") for thread in threading.enumerate())
