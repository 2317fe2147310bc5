"""`mqdb bench consume`: how fast messages come out.

    pull-32, pull-1000      one queue, so many messages by one statement, against SELECT through psycopg
    consume-32, consume-1   a push consumer whose listener does nothing, against pulls of the same queues

The SELECT reads the same columns of the same tables by the same indexes; it finds out nothing about the queue, and
makes no messages of the rows. All of it runs in one process; no producer and no dispatcher run.
"""

from collections.abc import Generator, Iterator
from functools import partial
from typing import Final

from mqdb.broker.horizon import UNKNOWN_HORIZON
from mqdb.broker.pull import DEFAULT_LIMIT, PullRequest, pull
from mqdb.cli.bench import clients, reference, sample
from mqdb.cli.bench.figures import Goal
from mqdb.cli.bench.rounds import Comparison, Side
from mqdb.cli.bench.testbed import Testbed
from mqdb.cli.bench.workers import Crew, Load, Operation, per_connection
from mqdb.dsn import BrokerDsn
from mqdb.message import MessageQueue
from mqdb.store.engine import create_engine

NAMES: Final = ("pull-32", "pull-1000", "consume-32", "consume-1")
UNIT: Final = "messages/s"
_QUEUES: Final = 4


@per_connection
def pulls(broker: BrokerDsn, topic: str, queue_keys: tuple[int, ...], limit: int) -> Iterator[Operation]:
    """Pulls of queues from their beginning to their end, and again."""
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


def comparisons(testbed: Testbed, *, seconds: float, messages: int) -> Generator[Comparison, None, None]:
    """What is measured, one after the other."""
    topic = testbed.topic("consume", _QUEUES)
    (floor,) = testbed.below.execute("SELECT last_value FROM mqdb.log_pos").fetchone() or (0,)
    sample.fill(testbed.below, topic.queue_keys, messages)
    testbed.dispatch_all()
    testbed.below.execute("ANALYZE mqdb.commit_log, mqdb.consume_queue")

    with Crew(testbed.broker, connections=1, jobs=1, servers=[testbed.server]) as crew:

        def side(label: str, load: Load, *goals: Goal) -> Side:
            return Side(label, lambda: crew.measure(load, seconds), goals)

        one = topic.queue_keys[:1]
        for limit in (32, 1_000):
            yield Comparison(
                f"pull-{limit}",
                UNIT,
                side(f"pull of {limit:,}, one queue", partial(pulls, topic=topic.name, queue_keys=one, limit=limit)),
                [
                    side(
                        f"psycopg SELECT of {limit:,}",
                        partial(reference.select, queue_key=one[0], floor=floor, limit=limit),
                        Goal(0.6),
                    )
                ],
            )
        for batch in (32, 1):
            yield Comparison(
                f"consume-{batch}",
                UNIT,
                side(
                    f"PushConsumer, up to {batch} a listener call, {_QUEUES} queues",
                    partial(clients.consume, topic=topic.name, messages=messages, batch=batch),
                    Goal(40_000),
                ),
                [
                    side(
                        f"pull of {DEFAULT_LIMIT} of each of {_QUEUES} queues",
                        partial(pulls, topic=topic.name, queue_keys=topic.queue_keys, limit=DEFAULT_LIMIT),
                        Goal(0.4),
                    )
                ],
            )
