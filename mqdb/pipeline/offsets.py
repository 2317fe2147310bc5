"""Offsets of a stream: how far each queue was read, as Spark keeps it in its checkpoint.

    {"broker": "broker-a", "topic_ids": {"orders": 3}, "topics": {"orders": {"0": 5, "1": 7}}}

Spark compares offsets as JSON texts, so the order of the keys is fixed: otherwise a query that has nothing to read
would make a batch at every trigger. The broker is named so that a checkpoint is not gone on with against another one,
and the ids of topics tell one that was deleted and made again: its offsets are those of other messages. The numbers of
queues are next offsets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mqdb.pipeline.errors import StreamUnreadable


class Queue(NamedTuple):
    """A queue of the one broker that is read."""

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, queue {self.queue_id}"


@dataclass(frozen=True)
class StreamOffset:
    """The next offset of each queue of a broker, and the ids of their topics."""

    broker: str
    offsets: Mapping[Queue, int]
    topic_ids: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As Spark's runner takes it and turns it into JSON; topics by name, queues by number."""
        topics: dict[str, dict[str, int]] = {}
        for queue, offset in sorted(self.offsets.items()):
            topics.setdefault(queue.topic, {})[str(queue.queue_id)] = offset
        return {"broker": self.broker, "topic_ids": {name: self.topic_ids[name] for name in topics}, "topics": topics}

    @classmethod
    def from_dict(cls, value: object) -> "StreamOffset":
        """What `to_dict` has made. Raises StreamUnreadable for anything else."""
        match value:
            case {"broker": str(broker), "topic_ids": dict(ids), "topics": dict(topics)} if ids.keys() == topics.keys():
                return cls(broker, _offsets(value, topics), ids)
        raise StreamUnreadable(json.dumps(value, default=repr), "it needs a broker, its topics and their ids")


def _offsets(whole: object, topics: dict[Any, Any]) -> dict[Queue, int]:
    try:
        return {
            Queue(topic, int(queue_id)): int(offset)
            for topic, queues in topics.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise StreamUnreadable(json.dumps(whole, default=repr), 'write topics as {"orders": {"0": 5}}') from error
