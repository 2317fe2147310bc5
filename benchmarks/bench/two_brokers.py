"""Two brokers on one machine: the cost for a producer whose messages go to both in turn.

The load is many threads that call plain `send`. Each broker gets half of the messages, so fewer messages gather for
each statement, and the client has two connections to handle. Threads that send batches would show less: their
statements do not change, and each thread waits for one broker at a time.
"""

from contextlib import ExitStack
from functools import cached_property, partial
from typing import Self

from benchmarks.bench import clients
from benchmarks.bench.figures import Measurement
from benchmarks.bench.testbed import PREFIX, Testbed, Topic
from benchmarks.bench.workers import Crew, Load


class TwoBrokers:
    """A producer for the testbed and its second broker, or for the first alone. The second is opened on first use."""

    def __init__(self, testbed: Testbed, topic: Topic, threads: int, seconds: float) -> None:
        """The second broker gets a topic with the same name."""
        self._testbed = testbed
        self._topic = topic
        self._threads = threads
        self._seconds = seconds
        self._opened = ExitStack()

    def over_one(self) -> Measurement:
        """Run one round with one broker, while the other is running but idle."""
        return self._measure(partial(clients.send, topic=self._topic.name))

    def over_two(self) -> Measurement:
        """Run one round with both brokers."""
        return self._measure(partial(clients.send, topic=self._topic.name, others=(self._second.broker,)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @cached_property
    def _second(self) -> Testbed:
        second = self._testbed.second
        second.topic(self._topic.name.removeprefix(PREFIX), len(self._topic.queue_keys))
        return second

    @cached_property
    def _crew(self) -> Crew:
        servers = [self._testbed.server, self._second.server]
        return self._opened.enter_context(
            Crew(self._testbed.broker, connections=self._threads, jobs=1, servers=servers)
        )

    def _measure(self, load: Load) -> Measurement:
        crew = self._crew
        for testbed in (self._testbed, self._second):
            testbed.make_room(self._seconds)
        return crew.measure(load, self._seconds, timed=True)
