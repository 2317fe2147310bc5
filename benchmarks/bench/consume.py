"""`do.py bench consume`: how fast messages are consumed.

    pull-32, pull-1000      one queue, 32 or 1,000 messages by one statement, against SELECT through psycopg
    consume-32, consume-1   a push consumer whose listener does nothing, against pulls of the same queues
    consume-orderly         the same, in order
    consume-once            the same, exactly once, with an INSERT for each message in the listener's transaction
    consume-async           an asyncio push consumer, 1,000 calls at once that await 10 ms, against consume-1
    consume-poll            a lite pull consumer that commits each poll of 100, against a push consumer with 100 a call
    consume-2               two processes that share the queues, against one

The SELECT reads the same columns of the same tables by the same indexes, but no state of the queue, and does not build
messages from the rows. Unless a line says otherwise, everything runs in one process, without a producer or a
dispatcher.
"""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from benchmarks.bench import consumers, message_sample, reference
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.consumers import Way
from benchmarks.bench.figures import Goal, Measurement
from benchmarks.bench.testbed import PREFIX, Testbed
from benchmarks.bench.workers import Crew, Load, Operation, per_connection
from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON
from mqdb.broker.consumers.pull import DEFAULT_LIMIT, PullRequest, pull
from mqdb.common.dsn import BrokerDsn
from mqdb.common.message import MessageQueue
from mqdb.store.engine import create_engine

NAMES: Final = (
    "pull-32",
    "pull-1000",
    "consume-32",
    "consume-1",
    "consume-orderly",
    "consume-once",
    "consume-async",
    "consume-poll",
    "consume-2",
)
#: That of asyncio.
ASYNC: Final = ("consume-async",)
UNIT: Final = "messages/s"
_QUEUES: Final = 8


@per_connection
def pulls(broker: BrokerDsn, topic: str, queue_keys: tuple[int, ...], limit: int) -> Iterator[Operation]:
    """Pulls queues from beginning to end, repeatedly."""
    start = [PullRequest(MessageQueue(topic, broker.name, number), key, 0) for number, key in enumerate(queue_keys)]
    engine = create_engine(broker.dsn, application_name="mqdb bench: load", pool_size=1)
    with engine.connect() as connection:
        requests, horizon = start, UNKNOWN_HORIZON

        def operation() -> int:
            nonlocal requests, horizon
            results, horizon = pull(connection, requests, limit=limit, horizon=horizon)
            found = sum(len(result.messages) for result in results)
            requests = [
                PullRequest(each.request.queue, each.request.queue_key, each.next_begin_offset, each.segment)
                for each in results
            ]
            if not found:
                requests = start
            return found

        yield operation
    engine.dispose()


def comparisons(testbed: Testbed, *, seconds: float, messages: int) -> Generator[SideComparison, None, None]:
    """The comparisons, one after another."""
    topic = testbed.topic("consume", _QUEUES)
    (floor,) = testbed.below.execute("SELECT last_value FROM mqdb.log_pos").fetchone() or (0,)
    message_sample.fill(testbed.below, topic.queue_keys, messages)
    testbed.dispatch_all()
    testbed.below.execute("ANALYZE mqdb.commit_log, mqdb.queue_run")

    with Crew(testbed.broker, connections=1, jobs=1, servers=[testbed.server]) as crew:

        def side(label: str, load: Load, *goals: Goal) -> Side:
            return Side(label, lambda: crew.measure(load, seconds), goals)

        first = topic.queue_keys[:1]
        for limit in (32, 1_000):
            yield SideComparison(
                f"pull-{limit}",
                UNIT,
                side(f"pull of {limit:,}, one queue", partial(pulls, topic=topic.name, queue_keys=first, limit=limit)),
                [
                    side(
                        f"psycopg SELECT of {limit:,}",
                        partial(reference.select, queue_key=first[0], floor=floor, limit=limit),
                        Goal(0.6),
                    )
                ],
            )

        def consuming(label: str, batch: int, goal: float, way: Way = Way.CONCURRENTLY) -> Side:
            load = partial(consumers.consume, topic=topic.name, messages=messages, batch=batch, way=way)
            measure = partial(crew.measure, load, seconds, weighed=True)
            if way is Way.EXACTLY_ONCE:
                measure = partial(_with_business_table, testbed, measure)
            goals = [Goal(goal), Goal(200, of="RSS_MiB", at_least=False)]
            return Side(f"PushConsumer, {label}, {_QUEUES} queues", measure, goals)

        pulling = side(
            f"pull of {DEFAULT_LIMIT} of each of {_QUEUES} queues",
            partial(pulls, topic=topic.name, queue_keys=topic.queue_keys, limit=DEFAULT_LIMIT),
        )
        at_least = replace(pulling, goals=[Goal(0.4)])
        measured = {
            "consume-32": (consuming("up to 32 a listener call", 32, 40_000), at_least),
            "consume-1": (consuming("1 a listener call", 1, 15_000), at_least),
            "consume-orderly": (consuming("orderly, 1 a listener call", 1, 15_000, Way.ORDERLY), pulling),
            "consume-once": (
                consuming("exactly once, up to 32 with an INSERT for each", 32, 5_000, Way.EXACTLY_ONCE),
                pulling,
            ),
        }
        for name, (consumer, reference_side) in measured.items():
            yield SideComparison(name, UNIT, consumer, [reference_side])
        awaiting = partial(consumers.consume_in_loop, topic=topic.name, messages=messages, at_once=1_000)
        yield SideComparison(
            "consume-async",
            UNIT,
            side("AsyncPushConsumer, 1,000 calls at once that await 10 ms", partial(awaiting, await_seconds=0.01)),
            [replace(consuming("1 a listener call", 1, 0), goals=[Goal(0.7)])],
        )
        yield SideComparison(
            "consume-poll",
            UNIT,
            side(
                f"LitePullConsumer, a commit for each poll of 100, {_QUEUES} queues",
                partial(consumers.poll, topic=topic.name, messages=messages, batch=100),
            ),
            [replace(consuming("up to 100 a listener call", 100, 0), goals=[Goal(0.8)])],
        )

    # Until the end of the round both have something left: whoever is done would wait for the other one.
    with (
        Crew(testbed.broker, connections=1, jobs=1, servers=[testbed.server]) as one,
        Crew(testbed.broker, connections=2, jobs=2, servers=[testbed.server]) as two,
    ):
        groups = (f"{PREFIX}shared_{number}" for number in count(time.monotonic_ns()))

        def together(crew: Crew) -> Measurement:
            load = partial(consumers.consume, topic=topic.name, messages=messages, batch=32, group=next(groups))
            return crew.measure(load, seconds / 2)

        yield SideComparison(
            "consume-2",
            UNIT,
            Side("two processes of one group", partial(together, two)),
            [Side("one process", partial(together, one), [Goal(0.9)])],
        )


def _with_business_table(testbed: Testbed, measure: Callable[[], Measurement]) -> Measurement:
    consumers.business.drop(testbed.connection, checkfirst=True)
    consumers.business.create(testbed.connection)
    try:
        return measure()
    finally:
        consumers.business.drop(testbed.connection)
