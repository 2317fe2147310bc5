"""The contents of a broker as returned by `Admin`, without anything that depends on the present time."""

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from mqdb_client import Admin, DeadLetterFilter, HalfState

#: Ages, and what a session or a process is doing now.
_OF_THE_PRESENT: Final = {"lag_seconds", "oldest_seconds", "members", "unowned_queues", "late"}

_OF_A_MESSAGE: Final = (
    *("queue_offset", "log_pos", "message_id", "tag", "keys", "properties", "body", "sys_flag", "flag"),
    *("reconsume_times", "born_time", "born_host", "store_time"),
)


def contents(admin: Admin) -> dict[str, Any]:
    """Settings, messages, progress, waiting and dead messages, rights and operations, by subject."""
    topics = sorted(topic.name for topic in admin.topics.list())
    groups = sorted(group.group for group in admin.groups.list())
    letters = [letter for group in groups for letter in admin.dead_letters.list(DeadLetterFilter(group=group))]
    found = {
        "topics": admin.topics.list(),
        "messages": {topic: _messages(admin, topic) for topic in topics},
        "groups": {group: admin.groups.show(group) for group in groups},
        "lags": {group: admin.groups.topics(group) for group in groups},
        "dead_letters": [admin.dead_letters.show(letter.msg_id) for letter in letters],
        "timers": admin.timers.list(),
        "delays": admin.delays.list(),
        "half_messages": admin.transactions.list(tuple(HalfState)),
        "crons": admin.crons.list(),
        "rights": admin.acl.list(),
        "operations": admin.operations.list(limit=100),
        "segments": admin.retention.segments(),
    }
    return {subject: plain(value) for subject, value in found.items()}


def _messages(admin: Admin, topic: str) -> list[Any]:
    with admin.messages.reading(topic) as reader:
        found = [
            {"queue_id": each.queue.queue_id} | {name: plain(getattr(each, name)) for name in _OF_A_MESSAGE}
            for each in reader
        ]
    return sorted(found, key=lambda message: (message["queue_id"], message["queue_offset"]))


def plain(value: object) -> Any:
    """A value as in JSON, with fields by name."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(plain(key)): plain(each) for key, each in value.items() if key not in _OF_THE_PRESENT}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    return _single(value)


def _single(value: object) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    assert value is None or isinstance(value, (bool, int, float, str)), value
    return value
