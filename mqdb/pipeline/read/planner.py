"""The plan of a read: queues and their bounds become ranges, ranges become parts, parts become tasks. No I/O.

A part is read in one of two ways. A **segment slice** takes the entries of all queues in one segment, and joins them
with the whole segment of the log, in no particular order: this is cheapest if most of the segment is read. A **queue
range** follows one queue by its index, in order of offset: this is for small reads and for reads in order.
"""

import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from typing import Final, TypeVar

from mqdb.broker.topics.topic_ranges import Layout
from mqdb.common.topic import is_group_topic, is_system_topic
from mqdb.errors import QueueNotFound, TopicNotFound
from mqdb.pipeline.errors import DatabaseReplaced, DataLoss, LogReplaced, OffsetOutOfRange, OptionInvalid
from mqdb.pipeline.read.offsets import Queue, StreamOffset
from mqdb.pipeline.read.positions import FIRST, PAST_LAST, Place, Position
from mqdb.pipeline.read.source_options import SourceOptions, Splitting, Subscription
from mqdb.store.topics.topic_ranges import BrokerIdentity, OffsetRange, Part, QueueBounds, SegmentRange, Span

logger = logging.getLogger(__name__)

#: A slice is worthwhile from this number of messages on, if they are at least this share of their segment: it also
#: reads all other messages, each for a tenth of the cost of an index lookup.
MIN_SLICE: Final = 20_000
MIN_SLICE_SHARE: Final = 1 / 8

#: Takes queue keys and a time; returns the first offset stored then or later, by key, or the max offset.
OffsetsOfTime = Callable[[Sequence[int], datetime], Mapping[int, int]]

_Place = TypeVar("_Place", bound=tuple[object, ...])


def batch_ranges(
    options: SourceOptions, found: Sequence[QueueBounds], offsets_of_time: OffsetsOfTime
) -> tuple[dict[Queue, QueueBounds], list[OffsetRange]]:
    """The queues of a batch read, out of all queues of its topics, and the ranges that it reads."""
    queues = subscribed(options.subscription, found)
    start = starting(options, queues, offsets_of_time)
    end = resolve(options.ending, queues, offsets_of_time)
    check_order(options.ending.option, start, end)
    return queues, ranges(start, end, queues, fail_on_data_loss=options.reading.fail_on_data_loss)


def wanted_topics(subscription: Subscription, all_topics: Callable[[], Iterable[str]]) -> Sequence[str]:
    """The named topics, or all topics whose complete name matches the pattern.

    System topics never match, and topics of groups match only a pattern with %.
    """
    if (pattern := subscription.pattern) is None:
        return subscription.named_topics
    expression = re.compile(pattern)
    return [
        name
        for name in all_topics()
        if expression.fullmatch(name) and not is_system_topic(name) and (not is_group_topic(name) or "%" in pattern)
    ]


def subscribed(
    subscription: Subscription, found: Sequence[QueueBounds], *, must_exist: bool = True
) -> dict[Queue, QueueBounds]:
    """The queues to read, out of all queues of the topics. Raises TopicNotFound, QueueNotFound."""
    queues = {Queue(each.topic, each.queue_id): each for each in found}
    queue_nums = {name: len(list(rows)) for name, rows in groupby(sorted(queue.topic for queue in queues))}
    for name in subscription.named_topics:
        if must_exist and not subscription.is_partial and name not in queue_nums:
            raise TopicNotFound(name)
    if subscription.assigned is None:
        return queues
    assigned = [Queue(name, queue_id) for name, ids in subscription.assigned.items() for queue_id in ids]
    for queue in assigned:
        if must_exist and queue not in queues and queue.topic in queue_nums:
            raise QueueNotFound(queue.topic, queue.queue_id, queue_nums[queue.topic])
    return {queue: queues[queue] for queue in assigned if queue in queues}


# -- positions ------------------------------------------------------------------------------------


def starting(
    options: SourceOptions, queues: Mapping[Queue, QueueBounds], offsets_of_time: OffsetsOfTime
) -> dict[Queue, int]:
    """The offsets at which a read starts. Raises OptionInvalid, OffsetOutOfRange."""
    must_hold, clip = not options.start_beyond_end_is_latest, not options.reading.fail_on_data_loss
    return resolve(options.starting, queues, offsets_of_time, must_hold=must_hold, clip=clip)


def resolve(
    position: Position,
    queues: Mapping[Queue, QueueBounds],
    offsets_of_time: OffsetsOfTime,
    *,
    must_hold: bool = False,
    clip: bool = False,
) -> dict[Queue, int]:
    """The offset of a position in each queue.

    With `must_hold` a time later than all messages of a non-empty queue is an error; otherwise it means the end of the
    queue. With `clip` an offset below the min offset means the min offset; otherwise it is an error. Raises
    OptionInvalid, OffsetOutOfRange.
    """
    places = _places(position, queues)
    of_time: dict[datetime, Mapping[int, int]] = {}
    for moment in {place for place in places.values() if isinstance(place, datetime)}:
        of_time[moment] = offsets_of_time([queues[queue].queue_key for queue in places], moment)
    offsets = {}
    for queue, place in places.items():
        bounds = queues[queue]
        if isinstance(place, datetime):
            offset = of_time[place].get(bounds.queue_key, bounds.max_offset)
            # Messages dispatched since the bounds were read are for the next read.
            offset = min(offset, bounds.max_offset)
            # In an empty queue nothing can be skipped.
            if must_hold and bounds.min_offset < offset == bounds.max_offset:
                reason = f"{queue} has no message stored at or after; set startingOffsetsByTimestampStrategy=latest"
                raise OptionInvalid(position.option, place.isoformat(), reason)
        else:
            offset = _offset(position.option, queue, place, bounds, clip=clip)
        offsets[queue] = offset
    return offsets


def _places(position: Position, queues: Mapping[Queue, QueueBounds]) -> Mapping[Queue, Place]:
    if position.by_queue is None:
        assert position.everywhere is not None
        return dict.fromkeys(queues, position.everywhere)
    missing, strange = sorted(queues.keys() - position.by_queue), sorted(position.by_queue.keys() - queues)
    if missing:
        raise OptionInvalid(position.option, None, f"does not contain {missing[0]}; name every queue that is read")
    if strange:
        raise OptionInvalid(position.option, None, f"{strange[0]} is not among the queues that are read")
    return position.by_queue


def _offset(option: str, queue: Queue, place: int, bounds: QueueBounds, *, clip: bool) -> int:
    if place == FIRST:
        return bounds.min_offset
    if place == PAST_LAST:
        return bounds.max_offset
    if clip:
        place = max(place, bounds.min_offset)
    if not bounds.min_offset <= place <= bounds.max_offset:
        raise OffsetOutOfRange(option, *queue, place, bounds.min_offset, bounds.max_offset)
    return place


# -- ranges ---------------------------------------------------------------------------------------


def ranges(
    start: Mapping[Queue, int],
    end: Mapping[Queue, int],
    queues: Mapping[Queue, QueueBounds],
    *,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """The ranges between start and end, by queue. A queue that is missing in `start` is new, and is read from offset 0.

    Raises DataLoss if messages are gone; if `fail_on_data_loss` is false, the remaining ones are read instead.
    """
    found = []
    for queue, past in sorted(end.items()):
        bounds = queues.get(queue)
        first = start.get(queue, 0)
        if first < past and (bounds is None or first < bounds.min_offset or past > bounds.max_offset):
            loss = DataLoss(f"{queue}, offsets {first:,} to before {past:,}", _what_is_gone(bounds, past))
            if fail_on_data_loss:
                raise loss
            logger.warning("skipped messages of %s: %s", loss.what, loss.reason)
            if bounds is None:
                continue
            first, past = max(first, bounds.min_offset), min(past, bounds.max_offset)
        if first < past and bounds is not None:
            found.append(OffsetRange(bounds.queue_key, first, past))
    return found


def check_kept(start: Mapping[Queue, int], queues: Mapping[Queue, QueueBounds]) -> None:
    """Raise DataLoss if a stream cannot continue at its offsets, or a new queue has already lost its first messages."""
    for queue, offset in (dict.fromkeys(queues, 0) | dict(start)).items():
        bounds = queues.get(queue)
        if bounds is None or not bounds.min_offset <= offset <= bounds.max_offset:
            raise DataLoss(f"{queue}, from offset {offset:,} on", _what_is_gone(bounds, offset))


def is_of_same_database(offset: StreamOffset, broker: BrokerIdentity, *, fail_on_data_loss: bool) -> bool:
    """Whether an offset is from this database, or from before creation times were recorded. Raises DatabaseReplaced."""
    if offset.created_at is None or offset.created_at == broker.created_at:
        return True
    reason = (
        f"the checkpoint is of a database that was set up at {offset.created_at.isoformat()}, but this one was set up "
        f"at {broker.created_at.isoformat()}"
    )
    loss = DatabaseReplaced(f"broker {broker.name!r}", reason)
    if fail_on_data_loss:
        raise loss
    logger.warning("read from its first message, each queue of %s: %s", loss.what, loss.reason)
    return False


def of_same_topics(
    offset: StreamOffset, queues: Mapping[Queue, QueueBounds], *, fail_on_data_loss: bool
) -> dict[Queue, int]:
    """The offsets of the topics that have not been deleted and created again since the offsets were stored.

    If a topic has been created again, all its queues are new. Raises DataLoss in this case if `fail_on_data_loss`.
    """
    ids = dict(offset.topic_ids) | {queue.topic: bounds.topic_id for queue, bounds in queues.items()}
    kept = {}
    for queue, number in offset.offsets.items():
        if ids[queue.topic] == offset.topic_ids[queue.topic]:
            kept[queue] = number
            continue
        loss = DataLoss(f"{queue}, at offset {number:,}", "its topic was deleted and recreated")
        if fail_on_data_loss:
            raise loss
        logger.warning("skipped messages of %s: %s", loss.what, loss.reason)
    return kept


def of_same_log(
    offsets: Mapping[Queue, int],
    queues: Mapping[Queue, QueueBounds],
    proven: Container[int],
    *,
    fail_on_data_loss: bool,
) -> dict[Queue, int]:
    """The offsets that are proven, or before which the log no longer has messages; `proven` has the keys of queues.

    Any other queue is read from its first message; with `fail_on_data_loss` it raises LogReplaced instead.
    """
    kept = {}
    for queue, number in offsets.items():
        bounds = queues.get(queue)
        if bounds is None or number <= bounds.min_offset or bounds.queue_key in proven:
            kept[queue] = number
            continue
        reason = "the log does not have the previous message that is stored in the checkpoint"
        loss = LogReplaced(f"{queue}, at offset {number:,}", reason)
        if fail_on_data_loss:
            raise loss
        logger.warning("read from its first message, %s: %s", loss.what, loss.reason)
    return kept


def _what_is_gone(bounds: QueueBounds | None, past: int) -> str:
    if bounds is None:
        return "its topic was deleted, or is no longer read"
    if past > bounds.max_offset:
        return f"the queue ends at {bounds.max_offset:,}, so its newest messages were lost"
    return f"retention has dropped messages below {bounds.min_offset:,}"


def check_order(option: str, start: Mapping[Queue, int], end: Mapping[Queue, int]) -> None:
    """Raise OptionInvalid if a batch read would end before it starts."""
    for queue, past in end.items():
        if past < start[queue]:
            reason = f"{queue} would end at {past:,}, before its start at {start[queue]:,}"
            raise OptionInvalid(option, None, reason)


def limited(start: Mapping[_Place, int], end: Mapping[_Place, int], most: int) -> dict[_Place, int]:
    """The end of a batch of at most `most` messages. Queues get shares in proportion to their unread messages.

    A place is a queue, preceded by the name of its broker if there are several brokers.
    """
    lags = {queue: max(past - start.get(queue, past), 0) for queue, past in end.items()}
    total = sum(lags.values())
    if total <= most:
        return dict(end)
    shares = {queue: most * lag // total for queue, lag in lags.items()}
    # The remainder of rounding goes to the queues that lost most by it.
    rest = most - sum(shares.values())
    for queue in sorted(lags, key=lambda each: (-(most * lags[each] % total), each))[:rest]:
        shares[queue] += 1
    return {queue: start.get(queue, past) + shares[queue] for queue, past in end.items()}


# -- parts and tasks ------------------------------------------------------------------------------


def tasks(layout: Layout, queues: Mapping[int, Queue], splitting: Splitting) -> list[list[Part]]:
    """The parts for each task: first slices, one per task, then ranges of queues, with small ranges bundled."""
    total = sum(span.past - span.first for span in layout.spans)
    largest = min(splitting.max_records_per_partition, -(-total // splitting.min_partitions) or 1)
    slices: list[list[Part]] = []
    ordered: list[Span] = []
    for number, of_segment in groupby(layout.spans, key=lambda span: span.segment):
        spans = list(of_segment)
        if _is_slice(spans, layout, splitting.by):
            slices += [[part] for part in _slices(layout.segments[number], spans, layout, queues, largest)]
        else:
            ordered += spans
    pieces = [
        piece for span in sorted(ordered, key=lambda s: (queues[s.queue_key], s.first)) for piece in _cut(span, largest)
    ]
    return slices + [
        [_range(layout, piece, queues) for piece in bundle]
        for bundle in _bundles(pieces, min(splitting.records_per_task, largest))
    ]


def _is_slice(spans: Sequence[Span], layout: Layout, by: str) -> bool:
    if by != "auto":
        return by == "segment"
    wanted = sum(span.past - span.first for span in spans)
    segment = layout.segments[spans[0].segment]
    return wanted >= max(MIN_SLICE, _filled(segment, layout.last_pos) * MIN_SLICE_SHARE)


def _filled(segment: SegmentRange, last_pos: int) -> int:
    """The number of used positions in a segment."""
    return max(min(segment.end_pos, last_pos + 1) - segment.start_pos, 0)


def _slices(
    segment: SegmentRange, spans: Sequence[Span], layout: Layout, queues: Mapping[int, Queue], largest: int
) -> Iterator[Part]:
    count = -(-sum(span.past - span.first for span in spans) // largest)
    filled = _filled(segment, layout.last_pos)
    inner = [segment.start_pos + filled * n // count for n in range(1, count)]
    cuts = [segment.lowest_log_pos, *inner, segment.end_pos]
    for lowest, past in pairwise(cuts):
        yield _part(layout, segment.number, (lowest, past), [OffsetRange(*span[1:]) for span in spans], queues)


def _range(layout: Layout, span: Span, queues: Mapping[int, Queue]) -> Part:
    segment = layout.segments[span.segment]
    positions = segment.lowest_log_pos, segment.end_pos
    return _part(layout, span.segment, positions, [OffsetRange(*span[1:])], queues)._replace(is_ordered=True)


def _part(
    layout: Layout, number: int, positions: tuple[int, int], spans: list[OffsetRange], queues: Mapping[int, Queue]
) -> Part:
    lowest, past = positions
    log = [each.number for each in layout.segments.values() if each.end_pos > lowest and each.start_pos < past]
    named = {span.queue_key: queues[span.queue_key] for span in spans}
    segment = layout.segments[number]
    is_whole = (lowest, past) == (segment.lowest_log_pos, segment.end_pos)
    return Part(number, tuple(sorted(log)), lowest, past, tuple(spans), named, is_ordered=False, is_whole=is_whole)


def _cut(span: Span, largest: int) -> Iterator[Span]:
    """Split a span into pieces of equal size, at most `largest`."""
    size = span.past - span.first
    count = -(-size // largest)
    edges = [span.first + size * n // count for n in range(count + 1)]
    for first, past in pairwise(edges):
        yield span._replace(first=first, past=past)


def _bundles(pieces: Iterable[Span], records: int) -> Iterator[list[Span]]:
    bundle: list[Span] = []
    held = 0
    for piece in pieces:
        size = piece.past - piece.first
        if bundle and held + size > records:
            yield bundle
            bundle, held = [], 0
        bundle.append(piece)
        held += size
    if bundle:
        yield bundle
