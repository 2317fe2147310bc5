"""Failed messages of a group that wait for their retry, counted by the number of the retry."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from mqdb.common.topic import retry_topic
from mqdb.store.schedule.waiting_timers import scheduled
from mqdb.store.tables import commit_log


class RetryStep(NamedTuple):
    """The waiting messages of a group that have failed the same number of times."""

    retry: int | None
    """The number of the retry for which they wait, 1 after the first failure; None if their records are gone."""
    waiting: int
    next_due: datetime
    """The time at which the first of them is delivered again."""


def by_step(connection: Connection, group: str) -> list[RetryStep]:
    """The waiting retries of a group, the first retry first."""
    record = commit_log.c
    found = scheduled.outerjoin(commit_log, record.log_pos == scheduled.c.log_pos)
    counted = select(record.reconsume_times, func.count(), func.min(scheduled.c.due_at)).select_from(found)
    rows = counted.where(scheduled.c.topic == retry_topic(group)).group_by(record.reconsume_times)
    return [RetryStep(*row) for row in connection.execute(rows.order_by(record.reconsume_times))]
