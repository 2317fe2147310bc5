"""The scenario of the demo, from creating the topic to the last message: publish, consume, count.

This module prints nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from mqdb.cli.demo.account import Delivery, GroupTally, Sent, count_disorder, latencies, settle
from mqdb.cli.demo.child import wait_for
from mqdb.cli.demo.flights import TOPIC, Flight
from mqdb.cli.demo.member import DemoMember, DemoOrder
from mqdb.cli.sharing import in_order_by_key
from mqdb.errors import MqdbError
from mqdb.selector.tags import parse_tag_expression
from mqdb.settings import Settings

if TYPE_CHECKING:
    from mqdb_client import Producer

QUEUES = 8

#: The first flights are sent as fast as possible; the rest, which show the latency, at a rate that does not saturate
#: the machine.
STEADY_MESSAGES = 1_500
STEADY_RATE = 500
THREADS = 8

_JOIN_SECONDS = 60.0
#: If no message is delivered for this long, the missing messages count as lost.
_SILENCE_SECONDS = 15.0


class GroupPlan(NamedTuple):
    """A consumer group of the demo."""

    group: str
    expression: str
    members: int


GROUPS = (GroupPlan("united-american", "UA || AA", 2), GroupPlan("all-carriers", "*", 1))


class GroupResult(NamedTuple):
    """The result of one group. The seconds at full speed are counted from the first send to the last listener call.

    Latencies, in seconds and ascending, are those of the steady part.
    """

    plan: GroupPlan
    account: GroupTally
    full_speed_messages: int
    full_speed_seconds: float
    steady_latencies: list[float]


class Result(NamedTuple):
    """The result of the demo."""

    groups: list[GroupResult]
    full_speed_messages: int
    full_speed_seconds: float
    steady_messages: int
    steady_seconds: float
    aircraft: int
    #: Flights that were delivered before an earlier flight of the same aircraft, or in another queue.
    disorder: int

    @property
    def is_exact(self) -> bool:
        """Whether no message is lost, duplicated, altered or out of order."""
        return all(each.account.is_exact for each in self.groups) and self.disorder == 0


class JoinTimeout(MqdbError):
    """The consumers of the demo did not get their queues."""

    seconds: float
    sentence = "the consumers of the demo did not divide the queues among themselves within {seconds:g} s"


class _Group:
    """A running group: its members, and the messages that they received."""

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self.expression = parse_tag_expression(plan.expression)
        self.members: list[DemoMember] = []
        self._guard = threading.Lock()
        self._deliveries: list[Delivery] = []

    def take(self, deliveries: list[Delivery]) -> None:
        with self._guard:
            self._deliveries += deliveries

    @property
    def deliveries(self) -> list[Delivery]:
        with self._guard:
            return list(self._deliveries)

    @property
    def count(self) -> int:
        return len(self._deliveries)

    def is_joined(self) -> bool:
        counts = [member.queue_count for member in self.members]
        return all(counts) and sum(counts) == QUEUES


class PublishedPart(NamedTuple):
    """The sent messages, in the order of the flights, and the time that sending took."""

    sent: list[Sent]
    seconds: float


class Publisher:
    """Sends flights and counts them."""

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer
        self._acknowledged: list[Sent] = []

    @property
    def count(self) -> int:
        """The number of messages that have been sent so far."""
        return len(self._acknowledged)

    def at_full_speed(self, flights: Sequence[Flight], threads: int) -> PublishedPart:
        """Send from several threads, each with its own aircraft, so that the flights of an aircraft stay in order."""
        started = time.monotonic()
        sent = in_order_by_key(flights, lambda flight: flight.sharding_key, self._send, threads)
        return PublishedPart(sent, time.monotonic() - started)

    def at_a_rate(self, flights: Sequence[Flight], per_second: int) -> PublishedPart:
        """Send one message after another, each at its scheduled time; a late message does not delay the next."""
        started = time.monotonic()
        sent = []
        for number, flight in enumerate(flights):
            pause = started + number / per_second - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            sent.append(self._send(flight))
        return PublishedPart(sent, time.monotonic() - started)

    def _send(self, flight: Flight) -> Sent:
        started = time.monotonic()
        result = self._producer.send(flight.message, sharding_key=flight.sharding_key)
        sent = Sent(result.message_id, flight.message.tag, flight.message.body, flight.sharding_key, started)
        self._acknowledged.append(sent)
        return sent


class Scenario:
    """One run of the demo.

    `step` is called with a sentence before each part of the run; `published` and `received` may be watched.
    """

    def __init__(
        self, settings: Settings, flights: Sequence[Flight], step: Callable[[str], None], *, is_fresh: bool
    ) -> None:
        """`settings` name a running database; with `is_fresh`, it holds no messages of an earlier run."""
        self._settings = settings
        self._flights = flights
        self._step = step
        self._is_fresh = is_fresh
        self._groups = [_Group(plan) for plan in GROUPS]
        self._publisher: Publisher | None = None

    @property
    def total(self) -> int:
        """Number of messages to send."""
        return len(self._flights)

    @property
    def published(self) -> int:
        """Number of messages sent so far."""
        return self._publisher.count if self._publisher else 0

    @property
    def received(self) -> list[int]:
        """Number of messages received so far, for each group."""
        return [group.count for group in self._groups]

    @property
    def expected(self) -> list[int]:
        """Number of messages that each group should receive."""
        tags = [flight.message.tag for flight in self._flights]
        return [sum(map(group.expression.matches, tags)) for group in self._groups]

    def run(self) -> Result:
        """Run the demo; raises ChildFailed, JoinTimeout, and any error of a client."""
        from mqdb_client import Admin

        with Admin(settings=self._settings) as admin:
            admin.topics.create(TOPIC, queues=QUEUES)
        with self._joined_groups():
            early, late = self._publish()
        # The members have left, so any duplicate or late message has arrived by now.
        return self._result(early, late)

    @contextmanager
    def _joined_groups(self) -> Iterator[None]:
        self._step(f"starting {sum(group.plan.members for group in self._groups)} consumers in {len(GROUPS)} groups")
        broker = self._settings.broker
        assert broker is not None
        with ExitStack() as members:
            for group in self._groups:
                order = DemoOrder(
                    f"{broker.name}={broker.dsn}",
                    self._settings.pool_dsn,
                    broker.name,
                    group.plan.group,
                    TOPIC,
                    group.plan.expression,
                )
                for _ in range(group.plan.members):
                    group.members.append(members.enter_context(DemoMember(order, group.take)))
            # Once all queues are divided, no message is redelivered because a queue changes its owner.
            if not self._wait_for(lambda: all(group.is_joined() for group in self._groups), _JOIN_SECONDS):
                raise JoinTimeout(_JOIN_SECONDS)
            yield
            self._step("waiting for the consumers to leave")
            for member in self._members():
                member.ask_to_stop()

    def _members(self) -> Iterator[DemoMember]:
        return (member for group in self._groups for member in group.members)

    def _publish(self) -> tuple[PublishedPart, PublishedPart]:
        """Publish all flights; returns the part at full speed and the part at the steady rate."""
        from mqdb_client import Producer

        with Producer("demo-flights", settings=self._settings) as producer:
            self._publisher = Publisher(producer)
            early, late = self._flights[:-STEADY_MESSAGES], self._flights[-STEADY_MESSAGES:]
            self._step(f"publishing {len(early):,} flights at full speed, from {THREADS} threads")
            first = self._publisher.at_full_speed(early, THREADS)
            self._wait_until_received(first.sent)
            self._step(f"publishing {len(late):,} flights at {STEADY_RATE} a second")
            second = self._publisher.at_a_rate(late, STEADY_RATE)
            self._wait_until_received([*first.sent, *second.sent])
        return first, second

    def _wait_until_received(self, sent: Sequence[Sent]) -> None:
        """Wait until each group has all messages, or until messages stop arriving; the account shows the difference."""
        missing = [{each.message_id for each in sent if group.expression.matches(each.tag)} for group in self._groups]
        seen = [0] * len(self._groups)

        def is_complete() -> bool:
            for number, group in enumerate(self._groups):
                fresh = group.deliveries[seen[number] :]
                seen[number] += len(fresh)
                missing[number].difference_update(each.message_id for each in fresh)
            return not any(missing)

        count = -1
        while count != (count := sum(self.received)):
            if self._wait_for(is_complete, _SILENCE_SECONDS):
                return

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        return wait_for(condition, seconds, meanwhile=self._check_members)

    def _check_members(self) -> None:
        for member in self._members():
            member.check()

    def _result(self, early: PublishedPart, late: PublishedPart) -> Result:
        sent = [*early.sent, *late.sent]
        ids = {each.message_id for each in sent}
        received = [
            [each for each in group.deliveries if self._is_fresh or each.message_id in ids] for group in self._groups
        ]
        return Result(
            groups=[
                GroupResult(
                    group.plan,
                    settle(sent, deliveries, group.expression),
                    *_pace(early.sent, deliveries),
                    latencies(late.sent, deliveries),
                )
                for group, deliveries in zip(self._groups, received, strict=True)
            ],
            full_speed_messages=len(early.sent),
            full_speed_seconds=early.seconds,
            steady_messages=len(late.sent),
            steady_seconds=late.seconds,
            aircraft=len({flight.message.keys[1] for flight in self._flights if len(flight.message.keys) > 1}),
            disorder=sum(count_disorder(sent, deliveries) for deliveries in received),
        )


def _pace(sent: Sequence[Sent], deliveries: Sequence[Delivery]) -> tuple[int, float]:
    """The number of these messages that were delivered, and the seconds from the first send to the last delivery."""
    ids = {each.message_id for each in sent}
    times = [each.time for each in deliveries if each.message_id in ids]
    return len(times), max(times, default=0.0) - min(each.time for each in sent) if times else 0.0
