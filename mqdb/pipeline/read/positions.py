"""Start and end of a read, for all queues or per queue: an offset, a time, or an end of the queue.

The forms are those of Spark's Kafka source: earliest, latest, {"orders": {"0": 5, "1": -2}}, milliseconds since 1970.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from mqdb.pipeline.errors import OptionInvalid
from mqdb.pipeline.read.offsets import Queue

#: Values that replace an offset. Source: JsonUtils, KafkaOffsetRangeLimit of Spark's Kafka source.
FIRST: Final = -2
PAST_LAST: Final = -1

#: An offset, FIRST, PAST_LAST, or the first message stored at a time or later.
Place: TypeAlias = int | datetime


@dataclass(frozen=True)
class Position:
    """Positions in queues, and the option that gave them. One of the two forms is given."""

    option: str
    everywhere: Place | None = None
    by_queue: Mapping[Queue, Place] | None = None


EARLIEST: Final = Position("startingOffsets", everywhere=FIRST)
LATEST: Final = Position("endingOffsets", everywhere=PAST_LAST)


def parse_offsets(name: str, text: str) -> Position:
    """Parse earliest, latest, or offsets by topic and queue, with -2 for the first offset and -1 for the end."""
    match text.strip().lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    return Position(name, by_queue=_by_queue(name, text, _offset, '{"orders": {"0": 5, "1": -2}}'))


def parse_times(name: str, text: str) -> Position:
    """Parse times by topic and queue."""
    return Position(name, by_queue=_by_queue(name, text, _time_of_queue, '{"orders": {"0": 1767225600000}}'))


def parse_time(name: str, text: str) -> datetime:
    """Parse milliseconds since 1970, or ISO 8601 with a zone, as executors and driver may be in different zones."""
    try:
        if text.strip().lstrip("-").isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is None or moment.utcoffset() is None:
        reason = "write milliseconds since 1970, or a time with a zone, as 2026-07-14T09:30+02:00"
        raise OptionInvalid(name, text, reason)
    return moment


def parse_assign(name: str, text: str) -> dict[str, tuple[int, ...]]:
    """Parse queue ids by topic."""
    value = _json(name, text, '{"orders": [0, 2]}')
    for queue_ids in value.values():
        if not isinstance(queue_ids, list) or not queue_ids or not all(type(each) is int for each in queue_ids):
            raise OptionInvalid(name, text, 'write the numbers of queues by topic, as {"orders": [0, 2]}')
    return {topic: tuple(dict.fromkeys(queue_ids)) for topic, queue_ids in value.items()}


def _by_queue(name: str, text: str, parse: Callable[[str, object], Place | None], example: str) -> dict[Queue, Place]:
    places: dict[Queue, Place] = {}
    for topic, queues in _json(name, text, example).items():
        for queue_id, value in queues.items() if isinstance(queues, dict) else [("", None)]:
            place = parse(name, value)
            if not re.fullmatch("[0-9]{1,9}", queue_id) or place is None:
                raise OptionInvalid(name, text, f"write a value for each queue of each topic, as {example}")
            places[Queue(topic, int(queue_id))] = place
    return places


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionInvalid(name, text, f"is not JSON ({error}); write it as {example}") from None
    if not isinstance(value, dict) or not value:
        raise OptionInvalid(name, text, f"write it as {example}")
    return value


def _offset(_name: str, value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and FIRST <= value < 2**63 else None


def _time_of_queue(name: str, value: object) -> datetime | None:
    return parse_time(name, str(value)) if isinstance(value, int | str) else None
