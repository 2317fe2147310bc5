"""The rules for the options of a client, written beside the options.

    pull_batch_size: Annotated[int, whole(1, 1_024)]
    auto_commit: Annotated[bool, FLAG]

The rules are checked when a configuration is made. Without a rule, a wrong type would show up late and elsewhere, or
never: "no" counts as True, and a string that looks like an enum member does not equal any member.
"""

import inspect
import threading
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from mqdb.common.argument_types import is_whole
from mqdb.common.dsn import is_broker_name
from mqdb.errors import ParameterInvalid

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Rule(NamedTuple):
    """A condition on a value."""

    allows: Callable[[Any], bool]
    #: The end of a sentence that describes the allowed values.
    reason: str
    #: Whether -1 stands for None, as in RocketMQ.
    is_unlimited: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise ParameterInvalid unless the value is allowed."""
        if not self.allows(value):
            raise ParameterInvalid(name, value, self.reason)


def check_options(config: "DataclassInstance") -> None:
    """Check all options of a configuration against the rules in their annotations.

    Raises ParameterInvalid for the first fault.
    """
    for option in fields(config):
        for rule in get_args(option.type)[1:]:
            if isinstance(rule, Rule):
                rule.check(option.name, value := getattr(config, option.name))
                if rule.is_unlimited and value == -1:
                    object.__setattr__(config, option.name, None)  # before the object is used


def whole(lowest: int, highest: int) -> Rule:
    """A whole number within these limits."""
    reason = f"must be a whole number from {lowest:,} to {highest:,}"
    return Rule(lambda value: is_whole(value) and lowest <= value <= highest, reason)


def whole_or_unlimited(lowest: int, highest: int) -> Rule:
    """A rule for a whole number between `lowest` and `highest`, or None. RocketMQ's -1 becomes None."""
    limited = whole(lowest, highest)
    allows = or_none(limited).allows
    return Rule(lambda value: allows(value) or (is_whole(value) and value == -1), f"{limited.reason}, or None", True)


def duration(lowest: timedelta, highest: timedelta = timedelta.max) -> Rule:
    """A timedelta within these limits."""
    limits = f"from {lowest} to {highest}" if highest < timedelta.max else f"of {lowest} at least"
    reason = f"must be a timedelta {limits}"
    return Rule(lambda value: isinstance(value, timedelta) and lowest <= value <= highest, reason)


def one_of(kind: type[Enum]) -> Rule:
    """A rule for a member of an enum; its name as a string is not allowed."""
    *others, last = (f"{kind.__name__}.{member.name}" for member in kind)
    return Rule(lambda value: isinstance(value, kind), f"must be {', '.join(others)} or {last}")


CLOCK: Final = Rule(
    lambda value: all(callable(getattr(value, name, None)) for name in ("now", "monotonic")),
    "must be a Clock, with now() and monotonic()",
)


def takes(*arguments: str, example: str = "") -> Rule:
    """A callable that can take these positional arguments."""
    reason = f"must be a callable that takes ({', '.join(arguments)})"
    return Rule(lambda value: _can_take(value, len(arguments)), f"{reason}, such as {example}" if example else reason)


def _can_take(value: object, count: int) -> bool:
    if not callable(value):
        return False
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def or_none(rule: Rule) -> Rule:
    """A rule that allows None besides the values that `rule` allows."""
    return Rule(lambda value: value is None or rule.allows(value), f"{rule.reason}, or None")


#: A limit on a number of things.
LIMIT: Final = whole(1, 2**31 - 1)

FLAG: Final = Rule(lambda value: isinstance(value, bool), "must be True or False")

DURATION: Final = Rule(
    lambda value: isinstance(value, timedelta) and value > timedelta(0), "must be a timedelta of more than 0"
)

#: How long a shutdown waits for listeners. Waits for a thread cannot be much longer than a year.
SHUTDOWN_TIMEOUT: Final = duration(timedelta(0), timedelta(days=365))

AWARE_TIME: Final = Rule(
    lambda value: isinstance(value, datetime) and value.utcoffset() is not None,
    "must be a datetime with a time zone, such as datetime(2024, 1, 1, tzinfo=UTC)",
)

#: No system allows the character NUL in a path. An empty string would be the working directory.
PATH: Final = Rule(
    lambda value: isinstance(value, Path) or (isinstance(value, str) and value != "" and "\0" not in value),
    "must be the path of a directory, a text or a Path",
)

INSTANCE_NAME: Final = Rule(is_broker_name, "use letters, digits, and _ . @ - after the first")

#: A strategy that allocates queues to the members of a group.
STRATEGY: Final = takes("group", "client_id", "queues", "client_ids", example="allocate_averagely")


def seconds_to_wait(wait: timedelta) -> float:
    """The seconds of a duration, limited to the longest time that a thread can wait."""
    return min(wait.total_seconds(), threading.TIMEOUT_MAX / 2)
