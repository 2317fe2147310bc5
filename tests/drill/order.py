"""The order in which an orderly consumer received the messages of each queue, judged by the present log.

A fail-over can remove the end of a queue: the same offset then belongs to another message, and a message gets another
offset. So a delivery counts only if its message still has the queue and offset of the delivery.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.fixtures.fault_group import Record


class Place(NamedTuple):
    """The place of a message."""

    queue: str
    queue_offset: int


def disorder(records: Iterable[Record], stored: Mapping[str, Sequence[Place]]) -> list[Record]:
    """The deliveries to one group that break the order of their queues."""
    queues: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if Place(record.queue, record.queue_offset) in stored.get(record.name, ()):
            queues[record.queue].append(record)
    return [wrong for deliveries in queues.values() for wrong in _out_of_order(deliveries)]


def _out_of_order(deliveries: Iterable[Record]) -> list[Record]:
    """The deliveries of one queue that are out of order.

    After a fail-over the consumer may go back, and receive messages again. A message must not arrive for the first time
    after a later one, and two steps back must not follow each other.
    """
    wrong: list[Record] = []
    seen: set[int] = set()
    last, highest, has_gone_back = -1, -1, False
    for each in deliveries:
        offset = each.queue_offset
        goes_back = offset < last
        if (goes_back and has_gone_back) or (offset < highest and offset not in seen):
            wrong.append(each)
        if offset != last:
            has_gone_back = goes_back
        seen.add(offset)
        last, highest = offset, max(highest, offset)
    return wrong
