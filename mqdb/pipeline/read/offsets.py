"""Offsets of a stream: how far each queue was read, as stored in Spark's checkpoint.

    {"brokers": {"broker-a": {
        "created_at": "2026-07-14T09:30:00+00:00",
        "topic_ids": {"orders": 3}, "topics": {"orders": {"0": 5, "1": 7}},
        "proofs": {"orders": {"0": [812, "c0a8...", "2026-11-24T07:10:11.5+00:00"], "1": [...]}}}}}

Spark compares offsets as JSON strings, so the order of the keys is fixed: otherwise a query that has nothing to read
would make a batch at every trigger. Brokers are named so that a query does not continue from the checkpoint of another
broker. `created_at` is the time at which the database was created: another database with the same name has another
time. The ids of topics identify a topic that was deleted and created again, whose offsets belong to other messages. The
number of each queue is its next offset. A proof is the log position, the unique id and the store time of the message
before the offset: a query does not continue from a checkpoint if the log has another message there. An offset without a
proof has no message before it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from mqdb.common.proof import Proof
from mqdb.pipeline.errors import StreamUnreadable


class Queue(NamedTuple):
    """A queue of a broker."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, queue {self.queue_id}"


@dataclass(frozen=True)
class StreamOffset:
    """The next offset of each queue of one broker, the ids of their topics, and the proofs of the offsets.

    `created_at` is None for a broker that the stream has not read yet.
    """

    broker: str
    offsets: Mapping[Queue, int]
    topic_ids: Mapping[str, int]
    proofs: Mapping[Queue, Proof] = field(default_factory=dict)
    created_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """This broker's part of the offset, with topics sorted by name and queues by number."""
        topics: dict[str, dict[str, int]] = {}
        proofs: dict[str, dict[str, list[object]]] = {}
        for queue, offset in sorted(self.offsets.items()):
            topics.setdefault(queue.topic, {})[str(queue.queue_id)] = offset
            if (proof := self.proofs.get(queue)) is not None:
                text = [proof.log_pos, str(proof.msg_id), proof.store_time.astimezone(UTC).isoformat()]
                proofs.setdefault(queue.topic, {})[str(queue.queue_id)] = text
        topic_ids = {name: self.topic_ids[name] for name in topics}
        created = {} if self.created_at is None else {"created_at": self.created_at.astimezone(UTC).isoformat()}
        return {**created, "topic_ids": topic_ids, "topics": topics, "proofs": proofs}

    @classmethod
    def from_dict(cls, broker: str, value: object) -> "StreamOffset":
        """The inverse of `to_dict`. Raises StreamUnreadable for any other value."""
        match value:
            case {"topic_ids": dict(ids), "topics": dict(topics), "proofs": dict(proofs), **rest} if (
                ids.keys() == topics.keys()
            ):
                offsets = _offsets(value, topics)
                created_at = _created_at(value, rest.get("created_at"))
                return cls(broker, offsets, ids, _proofs(value, proofs, offsets), created_at)
        raise StreamUnreadable(json.dumps(value, default=repr), "a broker needs topics, their ids and proofs")


@dataclass(frozen=True)
class ClusterOffset:
    """The offsets of a stream by broker, for one or several brokers."""

    brokers: Mapping[str, StreamOffset]

    def to_dict(self) -> dict[str, Any]:
        """The offset as a dict that Spark's runner turns into JSON. Brokers are sorted by name."""
        return {"brokers": {name: self.brokers[name].to_dict() for name in sorted(self.brokers)}}

    @classmethod
    def from_dict(cls, value: object) -> "ClusterOffset":
        """The inverse of `to_dict`. Raises StreamUnreadable for any other value."""
        match value:
            case {"brokers": dict(brokers)}:
                return cls({name: StreamOffset.from_dict(name, part) for name, part in brokers.items()})
        raise StreamUnreadable(json.dumps(value, default=repr), "it needs brokers")


def _offsets(whole: object, topics: dict[Any, Any]) -> dict[Queue, int]:
    try:
        return {
            Queue(topic, int(queue_id)): int(offset)
            for topic, queues in topics.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise StreamUnreadable(json.dumps(whole, default=repr), 'write topics as {"orders": {"0": 5}}') from error


def _created_at(whole: object, text: Any) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        reason = "write created_at as 2026-07-14T09:30:00+00:00"
        raise StreamUnreadable(json.dumps(whole, default=repr), reason) from error


def _proofs(whole: object, topics: dict[Any, Any], offsets: Mapping[Queue, int]) -> dict[Queue, Proof]:
    try:
        return {
            (queue := Queue(topic, int(queue_id))): Proof(
                offsets[queue] - 1, int(log_pos), UUID(msg_id), datetime.fromisoformat(store_time)
            )
            for topic, queues in topics.items()
            for queue_id, (log_pos, msg_id, store_time) in queues.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = 'write proofs as {"orders": {"0": [812, "c0a8...", "2026-11-24T07:10Z"]}}, of offsets that it has'
        raise StreamUnreadable(json.dumps(whole, default=repr), reason) from error
