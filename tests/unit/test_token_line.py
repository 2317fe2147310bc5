"""Tokens: each wakes an idle thread, one thread wakes the next, and no token is forgotten."""

import random
import threading
from collections import Counter

import pytest

from mqdb_client.consumer.listeners.token_line import TokenLine
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from tests.fixtures.orderly import queue_of
from tests.fixtures.processes import wait_until

_THREADS = 5


class Workers:
    """Threads that take tokens until each has received None, and keep each token as long as `stay` lasts."""

    def __init__(self, line: TokenLine, stay: threading.Barrier | None = None) -> None:
        self.taken: Counter[ProcessQueue] = Counter()
        self._line = line
        self._stay = stay
        self._guard = threading.Lock()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (queue := self._line.next()) is not None:
            with self._guard:
                self.taken[queue] += 1
            if self._stay is not None:
                self._stay.wait(30)

    def end(self) -> None:
        for _ in self._threads:
            self._line.put(None)
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)


def test_tokens_come_in_their_order() -> None:
    line, first, second = TokenLine(), queue_of(), queue_of()

    line.put(first, 2)
    line.put(second)
    line.put(None)

    assert [line.next() for _ in range(4)] == [first, first, second, None]


def test_all_threads_come_while_those_before_stay_with_their_tokens() -> None:
    """Every thread starts while earlier ones keep their tokens.

    Each waits with its token until all threads have one.
    """
    line = TokenLine()
    workers = Workers(line, threading.Barrier(_THREADS))

    line.put(queue_of(), 4 * _THREADS)

    wait_until(lambda: workers.taken.total() == 4 * _THREADS, 30)
    workers.end()


def test_many_tokens_wake_one_thread_and_only_that_one_wakes_another() -> None:
    line = TokenLine()

    line.put(queue_of(), 100)
    line.put(queue_of(), 100)

    assert line._calls.qsize() == 1


@pytest.mark.parametrize("seed", range(3))
def test_no_token_is_lost_or_left_whoever_puts_it_whenever(seed: int) -> None:
    """No token is lost or left over.

    Threads fall asleep and are woken at random: after each round of puts, every token must be taken.
    """
    chance = random.Random(seed)
    line = TokenLine()
    workers = Workers(line)
    queues = [queue_of() for _ in range(3)]
    put: Counter[ProcessQueue] = Counter()

    def put_some(queue: ProcessQueue, counts: list[int]) -> None:
        for count in counts:
            line.put(queue, count)

    for _ in range(100):
        counts = {queue: [chance.choice([1, 1, 2, 30]) for _ in range(chance.randrange(4))] for queue in queues}
        senders = [threading.Thread(target=put_some, args=item) for item in counts.items()]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        put.update({queue: sum(numbers) for queue, numbers in counts.items()})
        wait_until(lambda: workers.taken.total() == put.total(), 30)

    workers.end()
    assert +workers.taken == +put
