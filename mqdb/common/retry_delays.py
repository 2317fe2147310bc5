"""Retry delays: the waits after a message has failed once, twice, and so on, if its group uses no delay levels.

The last delay repeats. RocketMQ: GroupRetryPolicy.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from mqdb.common.duration import duration_text, parse_duration
from mqdb.errors import ParameterInvalid

MOST_RETRY_DELAYS: Final = 100

#: Source: the proxy's MAX_INVISIBLE_TIME.
LONGEST_RETRY_DELAY: Final = timedelta(hours=12)


def delay_after(delays: Sequence[timedelta], reconsume_times: int) -> timedelta:
    """The delay of a message that has just failed, and had failed `reconsume_times` times before."""
    return delays[min(reconsume_times, len(delays) - 1)]


def doubled_delays(first: timedelta, most: timedelta, multiplier: float = 2) -> list[timedelta]:
    """Delays that grow with each failure, from `first` to `most`. RocketMQ: ExponentialRetryPolicy."""
    if first <= timedelta(0) or multiplier <= 1:
        return [most]
    delays: list[timedelta] = []
    while first < most and len(delays) < MOST_RETRY_DELAYS - 1:
        delays.append(first)
        first *= multiplier
    return [*delays, most]


def parse_retry_delays(text: str) -> list[timedelta]:
    """Parse delays as people write them: `1s,5s,1m`, or `1s..10m`, in which each delay is twice the previous one.

    None for `ladder`, which stands for the delay levels. Raises ParameterInvalid.
    """
    if text.strip() == "ladder":
        return []
    first, dots, most = text.partition("..")
    delays = [parse_duration(each) for each in ((first, most) if dots else text.split(","))]
    if any(delay is None for delay in delays):
        reason = "write delays as 1s,5s,1m, or as 1s..10m, or ladder for those of the delay levels"
        raise ParameterInvalid("retry_delays", text, reason)
    known = [delay for delay in delays if delay is not None]
    check_retry_delays(known)
    return doubled_delays(known[0], known[1]) if dots else known


def retry_delays_text(delays: Sequence[timedelta]) -> str:
    """The text of retry delays, as `parse_retry_delays` reads it."""
    return ",".join(map(duration_text, delays)) or "ladder"


def check_retry_delays(delays: Sequence[timedelta]) -> None:
    """Raise ParameterInvalid unless a group may have these delays."""
    wrong = [delay for delay in delays if not timedelta(0) <= delay <= LONGEST_RETRY_DELAY]
    if wrong:
        raise ParameterInvalid("retry_delays", wrong[0], f"must be from 0 to {LONGEST_RETRY_DELAY}")
    if len(delays) > MOST_RETRY_DELAYS:
        raise ParameterInvalid("retry_delays", len(delays), f"a group can have at most {MOST_RETRY_DELAYS} delays")
