"""Delay levels: how long a message waits before delivery, by a number from 1 on.

A level is an entry of a table, `1s 5s 10s ...`, and not a time: messages of one level leave in the order in which they
arrived, so one queue per level is enough. RocketMQ: ScheduleMessageService.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from mqdb.common.duration import duration_text, parse_duration
from mqdb.errors import DelayLevelsInvalid

#: Source: MessageStoreConfig.messageDelayLevel.
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: 100 years, so that a time of delivery can always be represented.
MAX_DELAY: Final = timedelta(days=36_500)

#: Each level is a queue, and a round of the delay deliverer queries all queues. RocketMQ's default is 18.
MAX_LEVELS: Final = 100

_DELAY: Final = re.compile(r"[0-9]+[smhd]")


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """The delays of level 1, 2, ... in whole seconds, at least one."""

    delays: tuple[timedelta, ...]

    def clamp(self, level: int) -> int:
        """The effective level: the last level if `level` is too high; 0, which means no delay, if it is negative."""
        return max(0, min(level, len(self.delays)))

    def delay(self, level: int) -> timedelta:
        """The delay of a level, which is clamped, from the time when a message was stored."""
        clamped = self.clamp(level)
        return self.delays[clamped - 1] if clamped else timedelta(0)

    @property
    def text(self) -> str:
        """The table in its written form, each delay in the largest unit that gives a whole number."""
        return " ".join(map(duration_text, self.delays))


def parse_delay_levels(text: str) -> DelayLevels:
    """Parse numbers with a unit (s, m, h or d), separated by blanks; raises DelayLevelsInvalid.

    The delays need not ascend. Source: ScheduleMessageService.parseDelayLevel.
    """
    words = text.split() or [""]
    if len(words) > MAX_LEVELS:
        raise DelayLevelsInvalid(text, words[MAX_LEVELS], f"is one of {len(words):,} levels, the limit is {MAX_LEVELS}")
    return DelayLevels(tuple(_parsed(text, word) for word in words))


def _parsed(text: str, word: str) -> timedelta:
    match = _DELAY.fullmatch(word)
    if match is None:
        raise DelayLevelsInvalid(text, word, "is not a number with one of the units s, m, h and d, such as 30s")
    if (delay := parse_duration(word)) is None or delay > MAX_DELAY:
        raise DelayLevelsInvalid(text, word, f"is longer than {MAX_DELAY.days:,} days")
    return delay
