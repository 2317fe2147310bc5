"""The progress of a streaming query, written as the offsets of a group, so that `mqdb.consumer_lag` shows it.

These offsets are for information only: the query continues from its checkpoint, whatever they are. The stream's reader
reports the offset from which Spark plans the next batch. Spark plans the next batch only when the previous batch has
ended, also after a restart, and once more after the last batch of a query that ends by itself. A StreamingQueryListener
was not used: each user would have to add it and configure it with the database. The source's commit() was not used
either: Spark does not call it for the last batch.
"""

import logging
import time
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.consumers.group_offsets import commit_without_owner
from mqdb.errors import MqdbError
from mqdb.pipeline.read.offsets import Queue
from mqdb.store.consumers.group_offsets import ReadQueue, committed_positions
from mqdb.store.engine import create_engine, target_of, translated
from mqdb.store.topics.topics import find_topic

logger = logging.getLogger(__name__)

#: Spark may ask every 10 ms; an unreachable database is queried less often.
RETRY_SECONDS: Final = 10.0


class GroupProgress:
    """Reports of one streaming query, by the process that plans its batches.

    The reporter connects when it has something to report.
    """

    def __init__(self, dsn: str, group: str) -> None:
        """`dsn` leads to the primary. The group's name has already been checked."""
        self._group = group
        self._engine = create_engine(dsn, application_name=f"mqdb spark {group}", pool_size=1)
        self._reported: dict[Queue, int] = {}
        self._last_warning = ""
        self._retry_at = 0.0

    def report(self, next_offsets: Mapping[Queue, int]) -> None:
        """Write the offsets that have changed. A failure is only logged as a warning, and the query continues."""
        news = {queue: offset for queue, offset in next_offsets.items() if self._reported.get(queue) != offset}
        if not news or time.monotonic() < self._retry_at:
            return
        try:
            with translated(target_of(self._engine)), self._engine.connect() as connection:
                owned = _write(connection, self._group, news)
        except MqdbError as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._warn(str(error))
        else:
            self._reported |= news
            if owned:
                self._warn(f"members of the group consume its queues: {', '.join(owned)}")

    def close(self) -> None:
        """Give up the connection."""
        self._engine.dispose()

    def _warn(self, reason: str) -> None:
        if reason != self._last_warning:
            self._last_warning = reason
            fields = {"group": self._group, "reason": reason}
            logger.warning("could not write the progress of group %(group)s: %(reason)s", fields, extra=fields)


def _write(connection: Connection, group: str, news: Mapping[Queue, int]) -> list[str]:
    """Write offsets; returns the members that own some of the queues and therefore write these offsets themselves.

    Lost topics are skipped.
    """
    routes = {topic: find_topic(connection, topic) for topic in {queue.topic for queue in news}}
    offsets = {
        route.queue_keys[queue.queue_id]: offset
        for queue, offset in news.items()
        if (route := routes[queue.topic]) is not None and queue.queue_id < len(route.queue_keys)
    }
    # The current offsets: manually set offsets do not affect the query.
    known = {position.queue_key: position for position in committed_positions(connection, group, list(offsets))}
    read = [known.get(key, ReadQueue(key, 0, 0, None))._replace(next_offset=offsets[key]) for key in sorted(offsets)]
    return sorted(set(commit_without_owner(connection, group, read).owned.values()))
