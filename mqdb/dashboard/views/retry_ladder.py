"""The retries of a group as a ladder: a step for each retry, and how many messages wait on it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from mqdb.common.retry import FIRST_RETRY_LEVEL
from mqdb.common.retry_delays import delay_after
from mqdb_client import RetryStep

#: Steps that are shown although nobody waits there, so that the ladder of a group with many retries stays short.
_MOST_EMPTY: Final = 20


class LadderStep(NamedTuple):
    """One retry of a group."""

    retry: int | None
    """Its number, from 1; None for messages whose records are gone."""
    delay: timedelta | None
    """The time that a message waits for it, unless its consumer has chosen another one; None if that is not known."""
    waiting: int
    share: float
    """The waiting messages, as a share of the fullest step."""
    next_due: datetime | None


def retry_ladder(
    waiting: Sequence[RetryStep], most: int, delays: Sequence[timedelta] | None, levels: Sequence[timedelta]
) -> list[LadderStep]:
    """The steps of a group with `most` retries, by its own delays or else by the delay levels of the broker."""
    found = {each.retry: each for each in waiting}
    numbers: list[int | None] = sorted({*range(1, min(most, _MOST_EMPTY) + 1), *(retry for retry in found if retry)})
    if None in found:
        numbers.append(None)
    fullest = max((each.waiting for each in waiting), default=0) or 1
    steps = []
    for number in numbers:
        step = found.get(number)
        count = step.waiting if step else 0
        delay = None if number is None else _delay(number, delays, levels)
        steps.append(LadderStep(number, delay, count, count / fullest, step.next_due if step else None))
    return steps


def _delay(retry: int, delays: Sequence[timedelta] | None, levels: Sequence[timedelta]) -> timedelta | None:
    if delays:
        return delay_after(delays, retry - 1)
    return levels[min(FIRST_RETRY_LEVEL + retry - 1, len(levels)) - 1] if levels else None
