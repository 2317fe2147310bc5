"""Waiting messages, stored in numbers that no client could send, and watched as they are delivered.

A waiting message is a record of a system topic, with its due time in tags_code (`mqdb.store.schedule.delay_queues`). In
the benchmark the body also begins with that time, so the copy in the real topic shows when the message was due.
"""

import struct
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from psycopg.types.json import Jsonb

from benchmarks.bench import message_sample
from benchmarks.bench.latency import MessagesMissing
from benchmarks.bench.testbed import Testbed, Topic
from mqdb.common.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from mqdb.common.property import TAGS_CODE, Property
from mqdb.common.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from mqdb.errors import ParameterInvalid
from mqdb.selector.tags import tag_code
from mqdb.store.engine import target_of
from mqdb.store.schedule import delay_levels

_FILL_ROWS: Final = 100_000

_FILL = """
INSERT INTO mqdb.commit_log (queue_key, tags_code, born_time, msg_id, born_host, tags, keys, properties, body)
SELECT (%(queue_keys)s::integer[])[1 + n %% places], due, mqdb.now(), id, 'bench', %(tag)s, 'key' || n,
       (%(properties)s::jsonb[])[1 + n %% places]
       || CASE WHEN %(is_timer)s THEN jsonb_build_object('TIMER_DELIVER_MS', due::text) ELSE '{}' END
       || jsonb_build_object('REAL_TOPIC', %(topic)s::text, 'REAL_QID', (n %% %(queues)s)::text),
       int8send(due) || %(rest)s::bytea
FROM (SELECT n, gen_random_uuid() AS id, cardinality(%(queue_keys)s::integer[]) AS places,
             %(first_due)s::bigint + floor(n * %(step)s::float8)::bigint AS due
      FROM generate_series(%(first)s::integer, %(last)s::integer) AS n) given
"""

_QUEUE_KEYS = """
SELECT array_agg(queue_key ORDER BY queue_id) FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = %s
"""

_NOW_MS = "SELECT floor(extract(epoch FROM mqdb.now()) * 1000)::bigint"

# Of the snapshot that is older than the time: nothing counts as visible before it was.
_MAX_OFFSETS = """
SELECT extract(epoch FROM mqdb.now())::float8 * 1000, ARRAY(
    SELECT coalesce((SELECT r.last_offset + 1 FROM mqdb.queue_run r WHERE r.queue_key = q.queue_key
                     ORDER BY r.last_offset DESC LIMIT 1), 0)
    FROM unnest(%s::integer[]) WITH ORDINALITY AS q (queue_key, n) ORDER BY q.n)
"""

_COPIES = """
SELECT q.n::integer - 1, cq.queue_offset, substring(cl.body, 1, 8)
FROM unnest(%s::integer[], %s::bigint[]) WITH ORDINALITY AS q (queue_key, first_offset, n)
CROSS JOIN LATERAL mqdb.entries(q.queue_key, q.first_offset) AS cq
JOIN mqdb.commit_log cl USING (log_pos)
"""

_COLLECTED = "SELECT next_offset FROM mqdb.timer_step ORDER BY seq DESC LIMIT 1"

_DUE: Final = struct.Struct(">q")

_LOOK_SECONDS: Final = 0.003
_SETTLE_SECONDS: Final = 0.05
_ARRIVAL_SECONDS: Final = 60.0


class WaitingPlace(NamedTuple):
    """Queues of a system topic, and the properties of the messages in each."""

    queue_keys: Sequence[int]
    properties: Sequence[Mapping[str, str]]
    is_timer: bool = False


def in_levels(testbed: Testbed, *levels: int) -> WaitingPlace:
    """Queues of delay levels. Raises ParameterInvalid if these levels do not have their default delays."""
    if delay_levels.find(testbed.connection) != parse_delay_levels(DEFAULT_DELAY_LEVELS):
        reason = "its delay levels are not RocketMQ's, with which `do.py bench schedule` works"
        raise ParameterInvalid("--dsn", target_of(testbed.connection), reason)
    keys = _queue_keys(testbed, SCHEDULE_TOPIC)
    properties = [{Property.DELAY.value: str(level)} for level in levels]
    return WaitingPlace([keys[level - 1] for level in levels], properties)


def in_timers(testbed: Testbed) -> WaitingPlace:
    """The queue of timer messages."""
    return WaitingPlace(_queue_keys(testbed, TIMER_TOPIC), [{}], is_timer=True)


def now_ms(testbed: Testbed) -> int:
    """The broker's time in milliseconds since 1970."""
    (now,) = testbed.below.execute(_NOW_MS).fetchone() or (0,)
    return int(now)


def put(testbed: Testbed, topic: Topic, place: WaitingPlace, messages: int, first_due: int, step_ms: float) -> None:
    """Store waiting messages for a topic, the first due at `first_due`, and each `step_ms` later than the previous one.

    Returns when the broker process has collected all of them.
    """
    common = {**message_sample.PROPERTIES, TAGS_CODE: str(tag_code(message_sample.TAG))}
    fixed = {
        "queue_keys": list(place.queue_keys),
        "properties": [Jsonb({**common, **each}) for each in place.properties],
        "is_timer": place.is_timer,
        "topic": topic.name,
        "queues": len(topic.queue_keys),
        "tag": message_sample.TAG,
        "rest": message_sample.BODY[_DUE.size :],
        "first_due": first_due,
        "step": step_ms,
    }
    for first in range(0, messages, _FILL_ROWS):
        testbed.below.execute("SELECT mqdb.ensure_segments(2)")
        testbed.below.execute(_FILL, fixed | {"first": first, "last": min(first + _FILL_ROWS, messages) - 1})
    testbed.dispatch_all()
    while place.is_timer and not _are_collected(testbed, place):
        time.sleep(_SETTLE_SECONDS)


class Arrival(NamedTuple):
    """The messages that have arrived in a topic."""

    late_ms: list[float]
    """The delay of each message from its due time until it was visible, in ascending order."""
    last_ms: float
    """The time at which all messages were visible, by the broker's clock."""


class Watch:
    """Checks every few milliseconds which messages have arrived in a topic."""

    def __init__(self, testbed: Testbed, topic: Topic) -> None:
        """Begin to watch. Messages that arrived earlier do not count."""
        self._testbed = testbed
        self._keys = list(topic.queue_keys)
        self._first = self._look()[1]
        self._looks: list[tuple[float, list[int]]] = []

    def wait_for(self, messages: int, until_ms: float) -> Arrival:
        """Wait until `messages` messages have arrived.

        Raises MessagesMissing if some are missing a minute after `until_ms`.
        """
        missing = messages
        while missing:
            at, offsets = self._look()
            self._looks.append((at, offsets))
            missing = messages - (sum(offsets) - sum(self._first))
            if missing and at > until_ms + _ARRIVAL_SECONDS * 1_000:
                raise MessagesMissing(missing, messages)
            time.sleep(_LOOK_SECONDS)
        return Arrival(sorted(self._late()), self._looks[-1][0])

    def _look(self) -> tuple[float, list[int]]:
        """The time, and the max offset of each queue that was visible at that time."""
        at, offsets = self._testbed.below.execute(_MAX_OFFSETS, (self._keys,)).fetchone() or (0.0, [])
        return at, offsets

    def _late(self) -> list[float]:
        times = [at for at, _ in self._looks]
        seen = [[offsets[number] for _, offsets in self._looks] for number in range(len(self._keys))]
        copies = self._testbed.below.execute(_COPIES, (self._keys, self._first), binary=True)
        return [times[bisect_right(seen[number], offset)] - _DUE.unpack(due)[0] for number, offset, due in copies]


def _queue_keys(testbed: Testbed, topic: str) -> list[int]:
    (keys,) = testbed.below.execute(_QUEUE_KEYS, (topic,)).fetchone() or ([],)
    return list(keys)


def _are_collected(testbed: Testbed, place: WaitingPlace) -> bool:
    _, offsets = testbed.below.execute(_MAX_OFFSETS, (list(place.queue_keys),)).fetchone() or (0.0, [])
    (collected,) = testbed.below.execute(_COLLECTED).fetchone() or (0,)
    return collected >= sum(offsets)
