"""`do.py bench schedule`: how fast, and how late, due messages are delivered while a million others wait.

    levels, timers            messages due at a steady rate, in levels or as timers, until their offsets are visible
    both                      the same rate, half in levels and half as timers
    idle-levels, idle-timers  a round of the deliverer that finds nothing due
    wait-level, wait-timer    a delay of one second, from the call of send to the call of the listener

Half of the waiting messages are in levels, and half are timers. A broker process and its PostgreSQL do all the work
except the rounds of `idle`. The CPU of PostgreSQL includes the benchmark's queries for arrived messages.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from benchmarks.bench import latency, machine, waiting
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.figures import Goal, Measurement, durations, percentile
from benchmarks.bench.testbed import Testbed, Topic
from benchmarks.bench.waiting import WaitingPlace
from mqdb.errors import IllegalState
from mqdb.service.delay_deliverer import DelayDeliverer
from mqdb.service.service import Context, Service
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.store.engine import create_engine, driver

NAMES: Final = ("levels", "timers", "both", "idle-levels", "idle-timers", "wait-level", "wait-timer")
_QUEUES: Final = 4

#: Waits for 50 minutes at least: longer than any benchmark takes, and no longer than the levels.
_WAITING_LEVELS: Final = (17, 18)
_FIRST_WAIT_MS: Final = 50 * 60_000
_WAITING_MS: Final = 9 * 60_000

#: Of 10, 20 and 30 minutes, so that nothing waits too long for its level before it falls due.
_DUE_LEVELS: Final = (14, 15, 16)

#: From the first INSERT of a round until its first message is due: so many seconds, and as many as it takes to store.
_LEAD_SECONDS: Final = 2.0
_STORED_A_SECOND: Final = 2_500

_LATE: Final = Goal(150.0, "p99_ms", at_least=False)
_IDLE: Final = Goal(2.0, at_least=False)
#: Between 1.000 and 1.150 s.
_ONE_SECOND: Final = (Goal(1_000.0, "min_ms"), Goal(1_150.0, "p99_ms", at_least=False))

#: Below this many a second nothing is fast.
_LEAST_RATE: Final = 3_000

_WAIT_RATE: Final = 100.0
_WARM_UP_ROUNDS: Final = 20

_Deliverer: TypeAlias = Callable[[Context], Service[Any]]


def comparisons(
    testbed: Testbed, *, messages: int, rate: float, seconds: float
) -> Generator[SideComparison, None, None]:
    """The comparisons, one after another, while `messages` messages wait. `rate` is per second."""
    topic = testbed.topic("schedule", _QUEUES)
    levels, timers = waiting.in_levels(testbed, *_DUE_LEVELS), waiting.in_timers(testbed)
    with ExitStack() as stack:
        stack.enter_context(latency.served(testbed))
        _let_wait(testbed, topic, messages)
        for name, places in (("levels", [levels]), ("timers", [timers]), ("both", [levels, timers])):
            yield SideComparison(
                name,
                "messages/s",
                Side(
                    f"{rate:,.0f}/s fall due, {messages:,} wait",
                    partial(_deliver, testbed, topic, places, rate, seconds),
                    [Goal(min(_LEAST_RATE, 0.9 * rate)), _LATE],
                ),
            )
        deliverers: Sequence[tuple[str, _Deliverer]] = (("levels", DelayDeliverer), ("timers", TimerDeliverer))
        for name, deliverer in deliverers:
            side = Side(
                f"a round without work, {messages:,} wait", partial(_idle, testbed, deliverer, seconds), [_IDLE]
            )
            yield SideComparison(f"idle-{name}", "ms", side, lower_is_better=True)
        second: Sequence[tuple[str, Mapping[str, Any]]] = (
            ("level", {"delay_level": 1}),
            ("timer", {"delay": timedelta(seconds=1)}),
        )
        for name, options in second:
            side = Side(
                f"send to listener with a delay of 1 s, median, {_WAIT_RATE:g} messages/s",
                _Waiter(testbed, stack, f"wait_{name}", options, seconds),
                _ONE_SECOND,
            )
            yield SideComparison(f"wait-{name}", "ms", side, lower_is_better=True)


def _let_wait(testbed: Testbed, topic: Topic, messages: int) -> None:
    places = waiting.in_levels(testbed, *_WAITING_LEVELS), waiting.in_timers(testbed)
    for place, share in zip(places, (messages - messages // 2, messages // 2), strict=True):
        if share:
            first_due = waiting.now_ms(testbed) + _FIRST_WAIT_MS
            waiting.put(testbed, topic, place, share, first_due, _WAITING_MS / share)
    testbed.below.execute("ANALYZE mqdb.commit_log, mqdb.queue_run, mqdb.timer")


def _deliver(
    testbed: Testbed, topic: Topic, places: Sequence[WaitingPlace], rate: float, seconds: float
) -> Measurement:
    """Messages per second, from the time at which the first is due until the last is visible."""
    share = max(round(rate * seconds / len(places)), 1)
    messages = share * len(places)
    first_due = waiting.now_ms(testbed) + round((_LEAD_SECONDS + messages / _STORED_A_SECOND) * 1_000)
    watch = waiting.Watch(testbed, topic)
    for place in places:
        waiting.put(testbed, topic, place, share, first_due, seconds * 1_000 / share)
    left = (first_due - waiting.now_ms(testbed)) / 1_000
    if left < 0:
        raise IllegalState("the benchmark", f"too slow: its messages were due {-left:.1f} s before all were stored")
    time.sleep(left)
    cpu_began = testbed.server.seconds()
    arrival = watch.wait_for(messages, first_due + seconds * 1_000)
    cpu_ended = testbed.server.seconds()
    details = {f"p{percent}_ms": percentile(arrival.late_ms, percent) for percent in (50, 99)}
    details |= {"min_ms": arrival.late_ms[0], "max_ms": arrival.late_ms[-1]}
    if cpu_began is not None and cpu_ended is not None:
        details["server_cpu_us"] = (cpu_ended - cpu_began) / messages * 1e6
    return Measurement(messages / (arrival.last_ms - first_due) * 1_000, details)


def _idle(testbed: Testbed, deliverer: _Deliverer, seconds: float) -> Measurement:
    """Milliseconds of a round as seen by its caller; rounds follow each other for this many seconds."""
    engine = create_engine(testbed.broker.dsn, application_name="mqdb bench: rounds", pool_size=1)
    service = deliverer(Context(engine.connect))
    try:
        with engine.connect() as connection:
            service.prepare(connection)
            for _ in range(_WARM_UP_ROUNDS):
                service.run_once(connection)
            backend = machine.ProcessClock(machine.backend_pid(driver(connection)))
            took: list[float] = []
            cpu_began, began = backend.seconds(), time.perf_counter()
            while (now := time.perf_counter()) < began + seconds:
                service.run_once(connection)
                took.append(time.perf_counter() - now)
            cpu_ended = backend.seconds()
    finally:
        engine.dispose()
    details = durations(took)
    if cpu_began is not None and cpu_ended is not None:
        details["server_cpu_us"] = (cpu_ended - cpu_began) / len(took) * 1e6
    return Measurement(sum(took) / len(took) * 1e3, details)


class _Waiter:
    """Sends delayed messages to a listener; producer and consumer are started on first use."""

    def __init__(
        self, testbed: Testbed, stack: ExitStack, topic: str, options: Mapping[str, Any], seconds: float
    ) -> None:
        self._testbed = testbed
        self._stack = stack
        self._topic = topic
        self._options = options
        self._seconds = seconds
        self._stage: latency.Stage | None = None

    def __call__(self) -> Measurement:
        if self._stage is None:
            topic = self._testbed.topic(self._topic, _QUEUES)
            self._stage = self._stack.enter_context(latency.staged(self._testbed, [topic], self._options))
            self._stage.measure(_WAIT_RATE, latency.WARM_UP_SECONDS)
        return self._stage.measure(_WAIT_RATE, self._seconds)
