"""A listener of an application: a function, its messages, and the handling of its failures."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final, TypeAlias

from mqdb.common.group import check_group_name
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import check_topic_name
from mqdb.errors import ParameterInvalid
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import ALL_TAGS
from mqdb_client.app.arguments import Arguments, is_asynchronous
from mqdb_client.consumer.message_selector import MessageSelector, filter_of
from mqdb_client.option_rules import DURATION, FLAG, Rule, or_none, whole

#: The delay before each retry of a message: a constant, or a function of the number of the retry, from 1 on. None means
#: the broker's delay levels: 10 s, 30 s, 1 min and so on.
Backoff: TypeAlias = timedelta | Callable[[int], timedelta] | None

_RETRIES: Final = or_none(whole(0, 2**31 - 1))
_BACKOFF: Final = Rule(
    lambda value: value is None or callable(value) or DURATION.allows(value),
    "must be a timedelta greater than 0, a function that takes the number of the retry and returns one, or None",
)
_FACTOR: Final = Rule(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= 1_000,
    "must be a number from 1 to 1,000",
)
_ERRORS: Final = Rule(
    lambda value: all(isinstance(each, type) and issubclass(each, Exception) for each in value),
    "must be classes of exceptions",
)


def exponential(
    first: timedelta, *, factor: float = 2.0, limit: timedelta = timedelta(hours=2)
) -> Callable[[int], timedelta]:
    """A backoff: `first` before the first retry, and `factor` times longer before each further retry, up to `limit`.

    Raises ParameterInvalid.
    """
    DURATION.check("first", first)
    DURATION.check("limit", limit)
    _FACTOR.check("factor", factor)

    def wait(number: int) -> timedelta:
        try:
            return min(first * factor ** (number - 1), limit)
        except OverflowError:
            return limit

    return wait


@dataclass(frozen=True, eq=False)
class Listener:
    """A listener, checked on construction.

    Raises NameInvalid, TagExpressionInvalid, SelectorSyntaxError, ParameterInvalid.
    """

    function: Callable[..., Any]
    topic: str
    group: str
    expression: str | MessageSelector = ALL_TAGS
    retries: int | None = None
    backoff: Backoff = None
    dead_letter_on: tuple[type[Exception], ...] = ()
    orderly: bool = False
    exactly_once: bool = False

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        check_group_name(self.group)
        _ = self.filter
        _RETRIES.check("retries", self.retries)
        _BACKOFF.check("backoff", self.backoff)
        _ERRORS.check("dead_letter_on", self.dead_letter_on)
        FLAG.check("orderly", self.orderly)
        FLAG.check("exactly_once", self.exactly_once)
        if not callable(self.function):
            raise ParameterInvalid("listener", self.function, "is not a function")
        _ = self.arguments

    @cached_property
    def arguments(self) -> Arguments:
        """The arguments with which the function is called."""
        return Arguments(self.function, exactly_once=self.exactly_once)

    @property
    def is_asynchronous(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_asynchronous(self.function)

    @property
    def name(self) -> str:
        """The module and qualified name of the function, as shown to people."""
        named = self.function
        while isinstance(named, partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        return f"{named.__module__}.{named.__qualname__}"

    @cached_property
    def filter(self) -> MessageFilter:
        """The filter that selects the listener's messages of the topic."""
        return filter_of(self.expression)

    def takes(self, message: ReceivedMessage) -> bool:
        """Whether a message of the group is for this listener. The broker has already evaluated an SQL92 condition."""
        return message.topic == self.topic and self.filter.matches(message.tag)

    def wait_before(self, retry: int) -> timedelta | None:
        """The delay of a message before this retry; None for the broker's default.

        Raises the errors of a backoff function, and ParameterInvalid if it does not return a duration.
        """
        wait = self.backoff(retry) if callable(self.backoff) else self.backoff
        or_none(DURATION).check("backoff", wait)
        return wait
