"""`do.py bench filter`: how fast a filtered pull gets through a queue.

    tag-2, tag-1000   a tag of 1 message in 2, or 1 in 1,000: delivered messages
    tag-none          a tag that no message has: skipped entries
    sql-2             a selector with two conditions that 1 message in 5 meets: examined messages
    sql-everyday      a selector with a list of tags and a range, like most

The reference point of all is a pull without a filter, for the tags with a reader that checks each message's tag itself.
Each side reads all queues from beginning to end, repeatedly.
"""

from collections.abc import Callable, Generator, Iterator
from enum import StrEnum
from functools import partial
from typing import Final, TypeAlias

from benchmarks.bench import message_sample
from benchmarks.bench.comparison import Side, SideComparison
from benchmarks.bench.figures import Goal
from benchmarks.bench.testbed import Testbed
from benchmarks.bench.workers import Crew, Operation, per_connection
from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON
from mqdb.broker.consumers.pull import DEFAULT_LIMIT, PullRequest, pull
from mqdb.common.dsn import BrokerDsn
from mqdb.common.message import MessageQueue
from mqdb.selector import Selector, compile_selector
from mqdb.selector.tags import TagExpression, parse_tag_expression
from mqdb.store.engine import create_engine

NAMES: Final = ("tag-2", "tag-1000", "tag-none", "sql-2", "sql-everyday")

_QUEUES: Final = 8
_RARE: Final = 1_000

#: In turn along a queue: half of the messages have the first one, 1 in 1,000 the last.
_TAGS: Final = (*("TagA", "TagB") * (_RARE // 2 - 1), "TagA", "TagRare")
_PROPERTIES: Final = tuple(
    {"a": str(number), "color": color, "region": "north"} for color in ("red", "blue") for number in range(10)
)

_TWO_CONDITIONS: Final = "a > 5 AND color = 'red'"
_EVERYDAY: Final = "(TAGS is not null and TAGS in ('TagA', 'TagB')) and (a is not null and a between 0 and 3)"

#: Makes a filter in the process that is to use it.
Filter: TypeAlias = Callable[[], TagExpression | Selector]


class Counted(StrEnum):
    """The messages that an operation counts."""

    DELIVERED = "messages/s"
    LOOKED_AT = "looked at/s"


@per_connection
def pulls(
    broker: BrokerDsn,
    topic: str,
    queue_keys: tuple[int, ...],
    counted: Counted,
    by_broker: Filter | None = None,
    by_reader: Filter | None = None,
) -> Iterator[Operation]:
    """Pulls all queues from beginning to end, repeatedly, filtered by the broker, the reader or both."""
    start = [PullRequest(MessageQueue(topic, broker.name, number), key, 0) for number, key in enumerate(queue_keys)]
    given = None if by_broker is None else by_broker()
    second_look = None if by_reader is None else by_reader()
    engine = create_engine(broker.dsn, application_name="mqdb bench: load", pool_size=1, indexes_only=True)
    with engine.connect() as connection:
        requests, horizon = start, UNKNOWN_HORIZON

        def operation() -> int:
            nonlocal requests, horizon
            results, horizon = pull(connection, requests, filter=given, horizon=horizon)
            requests = [
                PullRequest(each.request.queue, each.request.queue_key, each.next_begin_offset, each.segment)
                for each in results
            ]
            if all(each.next_begin_offset == each.max_offset for each in results):
                requests = start
            if counted is Counted.LOOKED_AT:
                return sum(each.next_begin_offset - each.request.offset for each in results)
            messages = [message for each in results for message in each.messages]
            if second_look is not None:
                messages = [message for message in messages if second_look.matches(message.tag)]
            return len(messages)

        yield operation
    engine.dispose()


def comparisons(testbed: Testbed, *, seconds: float, messages: int) -> Generator[SideComparison, None, None]:
    """The comparisons, one after another."""
    topic = testbed.topic("filter", _QUEUES)
    message_sample.fill(testbed.below, topic.queue_keys, messages, tags=_TAGS, properties=_PROPERTIES)
    testbed.dispatch_all()
    testbed.below.execute("ANALYZE mqdb.commit_log, mqdb.queue_run")
    load = partial(pulls, topic=topic.name, queue_keys=topic.queue_keys)

    with Crew(testbed.broker, connections=1, jobs=1, servers=[testbed.server]) as crew:

        def side(
            label: str, counted: Counted, *goals: Goal, by_broker: Filter | None = None, by_reader: Filter | None = None
        ) -> Side:
            each = partial(load, counted=counted, by_broker=by_broker, by_reader=by_reader)
            return Side(label, lambda: crew.measure(each, seconds), goals)

        for name, tag, goal in (("tag-2", "TagA", 0.9), ("tag-1000", "TagRare", 20)):
            tags = partial(parse_tag_expression, tag)
            what = Counted.DELIVERED
            label = f"pull of {DEFAULT_LIMIT} with a tag of 1 message in {name.removeprefix('tag-')}, {_QUEUES} queues"
            reference = side("pull of all, the reader compares the tags", what, Goal(goal), by_reader=tags)
            yield SideComparison(name, what, side(label, what, by_broker=tags, by_reader=tags), [reference])

        what = Counted.LOOKED_AT
        filters: dict[str, tuple[str, Filter, list[Goal]]] = {
            "tag-none": ("pull with a tag that no message has", partial(parse_tag_expression, "TagNone"), []),
            "sql-2": (f"pull with {_TWO_CONDITIONS}", partial(compile_selector, _TWO_CONDITIONS), [Goal(0.5)]),
            "sql-everyday": ("pull with a list of tags and a range", partial(compile_selector, _EVERYDAY), [Goal(0.5)]),
        }
        for name, (label, wanted, goals) in filters.items():
            yield SideComparison(name, what, side(label, what, by_broker=wanted), [side("pull of all", what, *goals)])
