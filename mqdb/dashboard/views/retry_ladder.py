"""The retries of a group as a ladder: the steps on which messages wait, and their number on each step."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from mqdb.common.retry import FIRST_RETRY_LEVEL
from mqdb.common.retry_delays import delay_after
from mqdb_client import RetryStep


class LadderStep(NamedTuple):
    """A step of the ladder: one retry of a group."""

    retry: int | None
    """The number of the retry, from 1; None for messages whose records are gone."""
    delay: timedelta | None
    """The delay before the retry, unless the consumer has chosen another delay; None if the delay is not known."""
    waiting: int
    share: float
    """The number of waiting messages, as a share of the fullest step."""
    next_due: datetime


def retry_ladder(
    waiting: Sequence[RetryStep], delays: Sequence[timedelta] | None, levels: Sequence[timedelta]
) -> list[LadderStep]:
    """The steps with waiting messages. Delays are those of the group, or else the delay levels of the broker."""
    fullest = max((each.waiting for each in waiting), default=0)
    steps = []
    for each in waiting:
        delay = None if each.retry is None else retry_delay(each.retry, delays, levels)
        steps.append(LadderStep(each.retry, delay, each.waiting, each.waiting / fullest, each.next_due))
    return steps


def retry_delay(retry: int, delays: Sequence[timedelta] | None, levels: Sequence[timedelta]) -> timedelta | None:
    """The delay before a retry; the first retry is number 1. None without delays and levels."""
    if delays:
        return delay_after(delays, retry - 1)
    return levels[min(FIRST_RETRY_LEVEL + retry - 1, len(levels)) - 1] if levels else None
