"""The contents of a report on dead letters: their number by cause, group, topic, exception, attempts and hour."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters with the same group, topic, exception and folded error.

    None means that the letters do not contain this value.
    """

    group: str
    topic: str | None
    exception: str | None
    error: str | None
    messages: int
    fewest_attempts: int | None
    most_attempts: int | None
    first_died: datetime
    last_died: datetime
    #: The unchanged error of the last letter, and the unique id of its message.
    example: str | None
    example_id: str

    @property
    def deliveries(self) -> str:
        """The number of deliveries of its messages, or their range."""
        if self.fewest_attempts is None or self.most_attempts is None:
            return ""
        one = self.fewest_attempts == self.most_attempts
        return f"{self.fewest_attempts:,}" if one else f"{self.fewest_attempts:,} to {self.most_attempts:,}"


@dataclass(frozen=True, slots=True)
class Count:
    """The number of dead letters with this name or number of attempts. None stands for letters without this value."""

    name: str | int | None
    messages: int


@dataclass(frozen=True, slots=True)
class HourCount:
    """The number of dead letters that one exception caused in the hour from this time on, by the broker's clock."""

    hour: datetime
    exception: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """Dead letters, counted by several criteria. All times are aware, in UTC; the largest count comes first."""

    #: The requested groups and start; None means all groups, and from the oldest letter on.
    groups: tuple[str, ...] | None
    since: datetime | None
    made_at: datetime
    #: The number of causes; `causes` contains the MOST_CAUSES largest.
    causes_found: int = 0
    causes: tuple[Cause, ...] = ()
    by_group: tuple[Count, ...] = ()
    by_topic: tuple[Count, ...] = ()
    by_exception: tuple[Count, ...] = ()
    #: Sorted by the number of attempts.
    by_attempts: tuple[Count, ...] = ()
    #: Sorted by time; hours without letters are left out.
    by_hour: tuple[HourCount, ...] = ()

    @property
    def messages(self) -> int:
        """The number of dead letters."""
        return sum(count.messages for count in self.by_group)
