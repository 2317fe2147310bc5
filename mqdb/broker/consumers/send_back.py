"""Send back: messages that a group could not consume are retried later, or go to its dead letter queue.

    Later   a copy in SCHEDULE_TOPIC_XXXX, or in the topic of timers if the consumer has given a time; the
            deliverer copies it to %RETRY%group when it is due
    Dead    a copy in %DLQ%group

The properties of the copy contain the origin of the message and the reason of its failure.
RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.broker.topics.route import find_or_create_dlq_topic, find_or_create_retry_topic
from mqdb.common.failure import Failure
from mqdb.common.message import MessageQueue
from mqdb.common.property import FailureProperty, Property
from mqdb.common.retry import Dead, Later, Retry, decide
from mqdb.common.retry_delays import delay_after
from mqdb.common.topic import Perm, dlq_topic, retry_topic
from mqdb.errors import BrokerUnavailable, GroupNotFound, MessageGone, TopicNotWritable
from mqdb.store.consumers.send_back import Copy, Found, copy, find, timer_queue
from mqdb.store.engine import target_of, transaction, translates
from mqdb.store.log.history import ANOTHER_HISTORY, History
from mqdb.store.log.queue_fence import refusals_name

#: The limit if the broker has none: before the year 9999, the last year for a time of delivery.
_LONGEST_DELAY: Final = timedelta(days=365_000)


class SendBackRequest(NamedTuple):
    """A message as it was pulled, perhaps from a retry topic. `log_pos` is its position on this broker.

    `history` is the history of the log in which the position is valid; None means any history.
    """

    log_pos: int
    queue: MessageQueue
    queue_offset: int
    failure: Failure
    retry: Retry = Retry()
    reconsume_times: int | None = None
    """The number of earlier failures if it is not in the record: orderly consumers count in memory."""
    history: History | None = None
    is_popped: bool = False
    """Whether the message was popped: the consumer then calls `mqdb.broker.consumers.pop.fail` instead of
    `send_back`."""


class SentBack(NamedTuple):
    """The outcome for a message: it waits for `delay_level` or for the requested time, or is dead."""

    log_pos: int
    is_dead: bool
    delay_level: int
    """0 for a dead message, or one that waits for the requested time."""
    reconsume_times: int
    """The number of failures that is stored with the copy."""


@translates
def send_back(
    connection: Connection, group: str, requests: Sequence[SendBackRequest], max_reconsume_times: int | None = None
) -> list[SentBack]:
    """Send messages back in the given order, all or none, in one transaction or as part of the open transaction.

    `max_reconsume_times` is the number of retries before a message is dead; None uses the group's setting.
    Raises GroupNotFound, MessageGone if retention has dropped a message, TopicNotWritable if the retry topic was
    closed, and BrokerUnavailable if the log has another history than a request.
    """
    if not requests:
        return []
    with transaction(connection):
        found = _find(connection, group, requests)
        results = list(_decide(requests, found, max_reconsume_times))
        copies = _copies(connection, group, requests, results, found)
        with refusals_name(dlq_topic(group)):  # the other queues belong to the broker, and stay
            copy(connection, copies)
    return results


def _find(connection: Connection, group: str, requests: Sequence[SendBackRequest]) -> Found:
    topics = {request.queue.topic for request in requests}
    found = find(connection, group, [request.log_pos for request in requests], topics)
    if found is None:
        raise GroupNotFound(group)
    if any(request.history not in (None, found.history) for request in requests):
        raise BrokerUnavailable(target_of(connection), ANOTHER_HISTORY)
    for request, times in zip(requests, found.reconsume_times, strict=True):
        if times is None:
            raise MessageGone(str(request.queue), request.queue_offset, request.log_pos)
    return found


def _decide(requests: Sequence[SendBackRequest], found: Found, max_reconsume_times: int | None) -> Iterator[SentBack]:
    for request, stored in zip(requests, found.reconsume_times, strict=True):
        times = stored if request.reconsume_times is None else request.reconsume_times
        assert times is not None
        wished = (request.retry.max_reconsume_times, max_reconsume_times)
        most = next((limit for limit in wished if limit is not None), found.retry_max_times)
        decision = decide(times, request.retry.delay_level, most)
        is_dead, level = isinstance(decision, Dead), 0
        if isinstance(decision, Later) and _delay(request.retry, found, times) is None:
            level = min(decision.level, found.delay_levels)
        yield SentBack(request.log_pos, is_dead, level, times + 1)


def _delay(retry: Retry, found: Found, reconsume_times: int) -> timedelta | None:
    """The time that a message waits, if it has no delay level."""
    if retry.delay is None and retry.delay_level == 0 and found.retry_delays:
        return delay_after(found.retry_delays, reconsume_times)
    return retry.delay


def _copies(
    connection: Connection, group: str, requests: Sequence[SendBackRequest], results: Sequence[SentBack], found: Found
) -> list[Copy]:
    retry_queue_nums = _retry_queue_nums(connection, group, found)
    dlq_key = found.dlq_key
    if dlq_key is None and any(result.is_dead for result in results):
        dlq_key = find_or_create_dlq_topic(connection, group).queue_keys[0]
    copies, timers = [], None
    for request, result in zip(requests, results, strict=True):
        properties = request.failure.properties(result.reconsume_times)
        queue_key, level, delay_ms = dlq_key, result.delay_level or None, None
        if not result.is_dead:
            properties |= _waiting(level, found.full_names[retry_topic(group)], random.randrange(retry_queue_nums))
            if level is not None:
                queue_key = found.schedule_keys[level - 1]
            elif (delay := _delay(request.retry, found, result.reconsume_times - 1)) is not None:
                timers = timers or timer_queue(connection)
                queue_key, delay_ms = timers.queue_key, _milliseconds(delay, timers.max_delay_ms)
        assert queue_key is not None
        once, always = json.dumps(_origin(request, found.full_names[request.queue.topic])), json.dumps(properties)
        copies.append(Copy(result.log_pos, queue_key, level, delay_ms, result.reconsume_times, once, always))
    return copies


def _retry_queue_nums(connection: Connection, group: str, found: Found) -> int:
    """The number of queues among which the copies are distributed."""
    perm, nums = found.retry_perm, found.retry_write_queue_nums
    if perm is None or nums is None:
        config = find_or_create_retry_topic(connection, group).config
        perm, nums = config.perm, config.write_queue_nums
    if not perm & Perm.WRITE:
        raise TopicNotWritable(retry_topic(group), perm)
    return nums


def _waiting(level: int | None, topic: str, queue_id: int) -> dict[str, str]:
    """The additional properties of a waiting message.

    Source: HookUtils.transformDelayLevelMessage, transformTimerMessage.
    """
    where = {Property.REAL_TOPIC.value: topic, Property.REAL_QID.value: str(queue_id)}
    return where if level is None else where | {Property.DELAY.value: str(level)}


def _milliseconds(delay: timedelta, most: int | None) -> int:
    """Milliseconds, rounded up because messages are never delivered early, and within the broker's limit for timers."""
    milliseconds = max(-(-min(delay, _LONGEST_DELAY) // timedelta(milliseconds=1)), 0)
    return milliseconds if most is None else min(milliseconds, most)


def _origin(request: SendBackRequest, topic: str) -> dict[str, str]:
    """The properties that record the place of the first failure. A copy that fails again already has all of them."""
    return {
        Property.RETRY_TOPIC.value: topic,
        Property.ORIGIN_MESSAGE_ID.value: str(request.log_pos),
        FailureProperty.ORIGIN_QUEUE_ID.value: str(request.queue.queue_id),
        FailureProperty.ORIGIN_QUEUE_OFFSET.value: str(request.queue_offset),
    }
