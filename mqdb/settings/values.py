"""The kinds of values in settings: how each is parsed, and what is allowed."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, cast

from pydantic import AfterValidator, BeforeValidator, Field

from mqdb.common.delay_level import MAX_DELAY
from mqdb.common.duration import duration_text, parse_duration
from mqdb.common.http_address import parse_http_address
from mqdb.common.topic import check_topic_name
from mqdb.errors import NameInvalid


def _duration(value: object) -> object:
    duration = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, timedelta):
        raise ValueError("write a number and its unit, such as 72h, 3d, 45s or 500ms")
    return duration


@dataclass(frozen=True)
class DurationRange:
    """The limits of a duration, both inclusive: the services work with every duration between them."""

    least: timedelta
    most: timedelta = MAX_DELAY

    def __call__(self, value: timedelta) -> timedelta:
        if not self.least <= value <= self.most:
            least, most = (duration_text(bound, fewest_days=7) for bound in (self.least, self.most))
            raise ValueError(f"must be from {least} to {most}")
        return value


def at_least(least: str) -> tuple[BeforeValidator, AfterValidator]:
    """The validators of a duration of at least `least`."""
    return BeforeValidator(_duration), AfterValidator(DurationRange(cast(timedelta, _duration(least))))


def _hours(value: object) -> object:
    """RocketMQ writes deleteWhen as "04" or "01;13"."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(";") if part.strip()]
    if not parts or not all(re.fullmatch(r"[01]?\d|2[0-3]", part, re.ASCII) for part in parts):
        raise ValueError("write hours of the day from 00 to 23, such as 04 or 01;13")
    return sorted({int(part) for part in parts})


def _absolute(value: Path) -> Path:
    if re.match(r"postgres(ql)?(\+\w+)?:", str(value)):
        raise ValueError("is the address of a database, not a directory; set it as dsn")
    return expanded(value).absolute()


def _address(value: str) -> str:
    return str(parse_http_address(value))


def _topics(value: str) -> str:
    topics = value.replace(",", " ").split()
    if not topics:
        raise ValueError("names no topic; leave it out, or write topics, such as orders, payments")
    try:
        for topic in topics:
            check_topic_name(topic)
    except NameInvalid as error:
        raise ValueError(str(error)) from None
    return ", ".join(dict.fromkeys(topics))


def expanded(path: str | Path) -> Path:
    """The path with ~ replaced by the user's home directory. Raises ValueError for an impossible path."""
    try:
        found = Path(path).expanduser()
    except RuntimeError:
        raise ValueError("starts with ~ and the name of a user that does not exist here") from None
    if "\0" in str(found):
        raise ValueError("holds U+0000")
    return found


#: Hours of the day, ascending.
Hours = Annotated[tuple[Annotated[int, Field(ge=0, le=23)], ...], BeforeValidator(_hours)]
Percent = Annotated[int, Field(ge=1, le=100)]
#: Names separated by commas, without duplicates.
Topics = Annotated[str, AfterValidator(_topics)]
Directory = Annotated[Path, AfterValidator(_absolute)]
#: An absolute path, like Directory.
File = Directory
#: host:port.
Address = Annotated[str, AfterValidator(_address)]
