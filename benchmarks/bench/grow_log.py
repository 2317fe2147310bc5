"""A log that grows in steps: it is filled in bulk, then dispatched, indexed and sealed by mqdb's own functions."""

import os
from collections.abc import Callable
from datetime import timedelta
from secrets import token_hex
from typing import Final

from psycopg.types.json import Jsonb

from benchmarks.bench import message_sample
from benchmarks.bench.clients import settings_for
from benchmarks.bench.testbed import PREFIX, Testbed
from mqdb.broker.consumers.offset_reset import Boundary
from mqdb.broker.dispatch import index_keys
from mqdb.selector.tags import tag_code
from mqdb.service.retention import RetentionRules, SegmentSizing, segment_size
from mqdb.store.dispatch import checkpoints
from mqdb.store.segments import partitions, segments
from mqdb.store.segments.segments import SegmentState
from mqdb_client import Admin

TOPICS: Final = 8
QUEUES: Final = 8
GROUPS: Final = 10

#: Rows of a statement, and the time in which their ids were made: as at 20,000 messages a second.
_ROWS: Final = 10_000
_MADE_IN_MS: Final = 500

#: From one dispatch to the next.
_BACKLOG: Final = 500_000

# As a producer writes them, 0 to 500 ms after their ids were made: the key index treats older ids differently.
_FILL: Final = """
INSERT INTO mqdb.commit_log (queue_key, tags_code, born_time, msg_id, born_host, tags, keys, properties, body)
SELECT (%(queue_keys)s::integer[])[1 + n %% %(queues)s], %(tags_code)s, mqdb.now(),
       (%(prefix)s || lpad(to_hex((made_ms << 16) + n %% 65536), 12, '0'))::uuid, '127.0.0.1', %(tag)s, 'key' || n,
       %(properties)s::jsonb, %(body)s
FROM (SELECT n, (extract(epoch FROM now() - date_trunc('month', now(), 'UTC')) * 1000)::bigint - %(made_in)s
                + (n - %(first)s) * %(made_in)s / %(rows)s AS made_ms
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n) given
"""

# A reset knows no segment; the commits of consumers say the one that they have read.
_READ_THERE: Final = """
UPDATE mqdb.consumer_offset
SET segment = (SELECT segment FROM mqdb.checkpoint WHERE service = 'dispatch' ORDER BY seq DESC LIMIT 1)
WHERE group_id IN (SELECT group_id FROM mqdb.subscription_group WHERE group_name = ANY (%s))
"""


class GrowingLog:
    """Eight topics with eight queues each in a log of a known size, and ten groups, one of them at the beginning."""

    def __init__(self, testbed: Testbed, segment_records: int | None = None) -> None:
        """`segment_records` is the number of records of each segment.

        None stands for the size that `mqdb serve` would choose.
        """
        self.testbed = testbed
        self._segment_records = segment_records
        self.topics = [testbed.topic(f"grow_{number}", QUEUES) for number in range(TOPICS)]
        self.queue_keys = [key for topic in self.topics for key in topic.queue_keys]
        self.groups = [f"{PREFIX}group_{number}" for number in range(GROUPS)]
        #: Of the next message that is filled in; its key has it.
        self.number = 0
        self._prefix = token_hex(10)
        self._rows = 1

    def topic_of(self, number: int) -> str:
        """The topic of the message with this number."""
        return self.topics[number % len(self.queue_keys) // QUEUES].name

    def messages(self) -> int:
        """The number of used positions in the segments that still exist."""
        connection = self.testbed.connection
        kept = [each for each in segments.find_all(connection) if each.state is not SegmentState.DRAINED]
        return segments.log(connection).last_pos + 1 - min(each.start_pos for each in kept)

    def grow_to(self, size: int, announce: Callable[[int], None]) -> None:
        """Fill, dispatch, index and seal until the log has this many messages."""
        self._cut(size)
        while (missing := size - self.messages()) > 0:
            self.fill(min(missing, _BACKLOG), announce_to=announce)
            self._keep()
        self._place_groups()

    def fill(self, messages: int, announce_to: Callable[[int], None] = lambda done: None) -> None:
        """Put this many messages into the log, and have them dispatched and indexed."""
        self.append(messages)
        self.testbed.dispatch_all()
        self.index_all()
        announce_to(self.messages())

    def append(self, messages: int) -> None:
        """Put this many messages into the log."""
        fixed = {
            "queue_keys": self.queue_keys,
            "queues": len(self.queue_keys),
            "tags_code": tag_code(message_sample.TAG),
            "tag": message_sample.TAG,
            "properties": Jsonb(message_sample.PROPERTIES),
            "body": message_sample.BODY,
            "prefix": self._prefix,
            "made_in": _MADE_IN_MS,
            "rows": self._rows,
        }
        past = self.number + messages
        while self.number < past:
            last = min(self.number + self._rows, past) - 1
            self.testbed.below.execute("SELECT mqdb.ensure_segments(2)")
            self.testbed.below.execute(_FILL, fixed | {"first": self.number, "last": last})
            self.number = last + 1

    def index_all(self) -> None:
        """Bring the key index up to date."""
        while index_keys(self.testbed.connection).more:
            pass

    def settle(self) -> None:
        """Vacuum now, as autovacuum would do in time."""
        self.testbed.below.execute("VACUUM (ANALYZE) mqdb.commit_log, mqdb.queue_run, mqdb.message_index, mqdb.id_span")
        self.testbed.below.execute("VACUUM (ANALYZE) mqdb.checkpoint, mqdb.consumer_offset, mqdb.queue, mqdb.segment")
        # The disk is busy for a while with what was filled in.
        os.sync()

    def extent(self) -> tuple[int, int]:
        """The number of segments with messages, and the bytes of their partitions with all indexes."""
        connection = self.testbed.connection
        last_pos = segments.log(connection).last_pos
        used = sum(each.start_pos <= last_pos for each in segments.find_all(connection))
        return used, sum(partitions.size_bytes(connection, each) for each in (*partitions.INDEXES, partitions.LOG))

    def _cut(self, size: int) -> None:
        """Give the next segments the size that `mqdb serve` would choose for a log with this many messages.

        A log that fits into one segment still gets four, so that some can be sealed and dropped.
        """
        connection, rules = self.testbed.connection, RetentionRules()
        grown = segments.log(connection)._replace(last_pos=size)
        grown = grown._replace(created_at=grown.now - rules.file_reserved_time - timedelta(seconds=1))
        sizing = SegmentSizing(smallest=min(SegmentSizing().smallest, size // 3))
        before, records = segments.log(connection), self._segment_records or segment_size(sizing, rules, grown, [])
        segments.resize(connection, records)
        if records < before.segment_size and self.messages() == 0:
            self._replace_empty()
        # The segments that are there already may be smaller than the next ones.
        self._rows = min(_ROWS, *(each.end_pos - each.start_pos for each in segments.find_all(connection)))

    def _replace_empty(self) -> None:
        """Replace the segments of a new database, which hold more messages than a small log ever gets."""
        connection = self.testbed.connection
        for each in reversed(segments.find_all(connection)):
            for parent in (*partitions.INDEXES, partitions.LOG):
                self.testbed.below.execute(f"DROP TABLE mqdb.{parent}_{each.number}")
            self.testbed.below.execute("DELETE FROM mqdb.segment WHERE segment = %s", (each.number,))
        segments.ensure(connection, 2)

    def _keep(self) -> None:
        """Close and seal full segments, as the segment keeper does."""
        connection = self.testbed.connection
        segments.close_passed(connection)
        done_pos = min(checkpoint.done_pos for checkpoint in checkpoints.newest(connection).values())
        for each in segments.find_all(connection):
            if each.state is SegmentState.CLOSED and each.end_pos <= done_pos + 1:
                segments.seal(connection, each.number)

    def _place_groups(self) -> None:
        """Put one group at the beginning of all queues, and the others at the end."""
        with Admin(settings=settings_for(self.testbed.broker)) as admin:
            broker = admin.on(self.testbed.broker.name)
            for number, group in enumerate(self.groups):
                broker.groups.update(group)
                for topic in self.topics:
                    broker.offsets.reset(group, topic.name, Boundary.LATEST if number else Boundary.EARLIEST)
        self.testbed.below.execute(_READ_THERE, (self.groups[1:],))
