"""The line of queues: each queue is served by one thread at a time, and no queue is forgotten."""

import time
from collections.abc import Iterator

import pytest

from mqdb_client.consumer.listeners.queue_line import LinedQueue, QueueLine
from tests.fixtures.orderly import queue_of, received


@pytest.fixture
def line() -> Iterator[QueueLine]:
    line = QueueLine("pauses")
    line.start()
    yield line
    line.stop()


def taken(line: QueueLine) -> LinedQueue:
    """The next queue, taken by the thread whose turn it is."""
    lane = line.next()
    assert lane is not None
    lane.turn()
    return lane


def next_after_nudge(line: QueueLine) -> LinedQueue | None:
    """The next queue in the line, or None if the line is empty."""
    line.nudge()
    return line.next()


def test_a_queue_is_in_the_line_once(line: QueueLine) -> None:
    queue = queue_of()

    for _ in range(3):
        line.submit(queue)

    assert taken(line).process_queue is queue
    assert next_after_nudge(line) is None


def test_a_queue_that_a_thread_has_is_not_in_the_line(line: QueueLine) -> None:
    line.submit(queue_of())
    taken(line)

    line.submit(queue_of())

    assert next_after_nudge(line) is None


def test_what_comes_after_the_turn_keeps_the_thread_there(line: QueueLine) -> None:
    """A message that arrives after the turn keeps its thread there. Otherwise it would wait for the next arrival."""
    line.submit(queue_of())
    lane = taken(line)
    line.submit(queue_of())

    assert not line.leave(lane)
    lane.turn()
    assert line.leave(lane)


def test_a_queue_that_was_left_comes_with_its_next_messages(line: QueueLine) -> None:
    line.submit(queue_of())
    assert line.leave(taken(line))

    line.submit(queue_of())

    assert taken(line).process_queue.queue.queue_id == 0


def test_queues_that_are_put_back_let_the_others_go_first(line: QueueLine) -> None:
    for number in range(3):
        line.submit(queue_of(number))

    order = []
    for _ in range(6):
        lane = taken(line)
        order.append(lane.process_queue.queue.queue_id)
        line.put_back(lane)

    assert order == [0, 1, 2, 0, 1, 2]


def test_the_shortest_pause_ends_first(line: QueueLine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)  # all begin at one moment
        for number, seconds in enumerate((0.06, 0.02, 30.0, 0.04)):
            line.submit(queue_of(number))
            line.pause(taken(line), seconds)

    assert [taken(line).process_queue.queue.queue_id for _ in range(3)] == [1, 3, 0]


def test_messages_do_not_end_a_pause(line: QueueLine) -> None:
    line.submit(queue_of())
    line.pause(taken(line), 30.0)

    line.submit(queue_of())

    assert next_after_nudge(line) is None


def test_a_queue_that_was_taken_again_has_nothing_that_was_kept(line: QueueLine) -> None:
    old, new = queue_of(), queue_of()
    line.submit(old)
    lane = taken(line)
    lane.kept.append(received(old, 0))
    line.submit(new)

    assert lane.turn() is new
    assert lane.kept == []
