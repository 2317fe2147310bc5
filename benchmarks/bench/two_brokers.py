"""Two brokers on one machine: what it costs a producer that its messages go to both of them by turns.

The load is many threads that call plain `send`. Each broker gets half of the messages, so that less gathers for a
statement, and the client has two connections to look after. Threads that send batches would show less: their
statements stay as they are, and each waits for one broker at a time.
"""

from contextlib import ExitStack
from functools import cached_property, partial
from typing import Self

from benchmarks.bench import clients
from benchmarks.bench.figures import Measurement
from benchmarks.bench.testbed import PREFIX, Testbed, Topic
from benchmarks.bench.workers import Crew, Load


class TwoBrokers:
    """A producer over the testbed and its second, or over the first alone. The second is opened when it is needed."""

    def __init__(self, testbed: Testbed, topic: Topic, threads: int, seconds: float) -> None:
        """The second broker gets the same topic."""
        self._testbed = testbed
        self._topic = topic
        self._threads = threads
        self._seconds = seconds
        self._opened = ExitStack()

    def over_one(self) -> Measurement:
        """One round; the other broker runs, and has nothing to do."""
        return self._measure(partial(clients.send, topic=self._topic.name))

    def over_two(self) -> Measurement:
        """One round."""
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
