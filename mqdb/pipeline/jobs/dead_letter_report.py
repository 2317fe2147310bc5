"""The contents of a report on dead letters: their number by cause, group, topic, exception, attempts and hour."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters that have group, topic, exception and folded error in common. None is what a letter does not say."""

    group: str
    topic: str | None
    exception: str | None
    error: str | None
    messages: int
    fewest_attempts: int | None
    most_attempts: int | None
    first_died: datetime
    last_died: datetime
    #: The error of the last one as it was, and the unique id of that message.
    example: str | None
    example_id: str

    @property
    def deliveries(self) -> str:
        """The number of deliveries of its messages, or the range from the fewest to the most."""
        if self.fewest_attempts is None or self.most_attempts is None:
            return ""
        one = self.fewest_attempts == self.most_attempts
        return f"{self.fewest_attempts:,}" if one else f"{self.fewest_attempts:,} to {self.most_attempts:,}"


@dataclass(frozen=True, slots=True)
class Count:
    """The number of dead letters with this name or number of attempts. None stands for letters that do not have one."""

    name: str | int | None
    messages: int


@dataclass(frozen=True, slots=True)
class HourCount:
    """The number of letters that died of an exception in the hour that begins then, by the broker's clock."""

    hour: datetime
    exception: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """Dead letters, counted in several respects. All times are aware, in UTC; the largest count comes first."""

    #: The groups and the start that were asked for; None: all groups, and from the oldest letter on.
    groups: tuple[str, ...] | None
    since: datetime | None
    made_at: datetime
    #: The number of causes; `causes` has the MOST_CAUSES largest.
    causes_found: int = 0
    causes: tuple[Cause, ...] = ()
    by_group: tuple[Count, ...] = ()
    by_topic: tuple[Count, ...] = ()
    by_exception: tuple[Count, ...] = ()
    #: In order of their number.
    by_attempts: tuple[Count, ...] = ()
    #: In order of time; hours without letters are left out.
    by_hour: tuple[HourCount, ...] = ()

    @property
    def messages(self) -> int:
        """Number of dead letters."""
        return sum(count.messages for count in self.by_group)
