"""Sent messages: their outcomes, and the queue offsets that dispatch assigned to them."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from mqdb.broker.dispatch import dispatch, is_attended
from mqdb.broker.log.outcome import StoredAt, find_sent, queue_of
from mqdb.broker.log.query import queue_key_of, queue_offset_of
from mqdb.broker.schedule.recall_handles import handle_of
from mqdb.common.message import MessageQueue, SendStatus
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import (
    BrokerUnavailable,
    DispatchTimeout,
    IllegalState,
    MqdbError,
    ParameterInvalid,
    SendOutcomeUnknown,
)
from mqdb_client.producer.append.append_plan import NoAnswer
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.queues.queue_choice import SendPlace
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.unknown import UnknownSends, settle

# The pauses between lookups, and between checks whether any process dispatches.
_FIRST_LOOK_SECONDS: Final = 0.001
_LONGEST_LOOK_SECONDS: Final = 0.05
_ATTENDANCE_SECONDS: Final = 0.2


class SentMessages:
    """Queries brokers about messages of one producer, each query within the send timeout."""

    def __init__(self, links: Callable[[], Mapping[str, BrokerLink]], timeout_seconds: float) -> None:
        """`links` raises IllegalState if the producer is no longer running."""
        self._links = links
        self._timeout_seconds = timeout_seconds

    def outcome(self, message_id: str, unknown_sends: UnknownSends) -> SendResult | None:
        """The result of a send, by the unique id of the message. See `Producer.outcome`."""
        links = self._links()
        try:
            unique_id = parse_unique_id(message_id)
        except ValueError as error:
            raise ParameterInvalid("message_id", message_id, str(error)) from None
        deadline = time.monotonic() + self._timeout_seconds
        unknown = unknown_sends.find(unique_id)
        asked = tuple(links.values()) if unknown is None else (unknown.link,)
        silent: BrokerUnavailable | None = None
        for link in asked:
            late = self._late(link)
            try:
                if unknown is None:
                    find = partial(find_sent, unique_ids=[unique_id])
                    found = link.ask(find, deadline, late, is_patient=len(asked) == 1)
                else:
                    found = settle(link, unknown.outcome, [unique_id], deadline, late)
                if found:
                    return self._found(link, message_id, found[unique_id], deadline, late)
            except BrokerUnavailable as error:
                silent = error  # another broker may have it
            except NoAnswer as error:
                assert unknown is not None
                reason = f"{error.reason}; it is not stored so far, and may be yet"
                raise SendOutcomeUnknown(unknown.topic, link.name, (message_id,), reason) from None
        if silent is not None:
            raise silent
        return None

    def _found(
        self, link: BrokerLink, message_id: str, stored: StoredAt, deadline: float, late: MqdbError
    ) -> SendResult | None:
        unique_id = parse_unique_id(message_id)
        named = link.ask(partial(queue_of, stored=stored), deadline, late)
        if named is None:  # its topic has been deleted since
            return None
        queue = MessageQueue(named.topic, link.name, named.queue_id)
        find = partial(self.find_queue_offset, SendPlace(queue, link, stored.queue_key), stored.log_pos, unique_id)
        result = SendResult(SendStatus.SEND_OK, message_id, queue, stored.log_pos, find)
        if named.deliver_ms is not None:
            result.recall_handle = handle_of(message_id, queue, named.deliver_ms)
        return result

    def find_joined_offset(self, queue: MessageQueue, queue_key: int, log_pos: int, unique_id: UUID) -> int:
        """The queue offset of a record that was sent in the caller's transaction.

        Raises IllegalState if the record does not exist, or if its broker does not belong to this producer.
        """
        link = self._links().get(queue.broker_name)
        if link is None:
            raise IllegalState(f"broker {queue.broker_name!r}", "not one of this producer's; its offsets are unknown")
        find = partial(queue_key_of, log_pos=log_pos)
        if link.ask(find, time.monotonic() + self._timeout_seconds, self._late(link)) is None:
            reason = "not in the log: its transaction is open, or was rolled back, or retention has dropped it"
            raise IllegalState(f"the message at {log_pos} of {queue.broker_name}", reason)
        return self.find_queue_offset(SendPlace(queue, link, queue_key), log_pos, unique_id)

    def find_queue_offset(self, place: SendPlace, log_pos: int, unique_id: UUID, waits: bool = False) -> int:
        """The offset of a record. If there is no leader to dispatch the record, dispatches it.

        Raises DispatchTimeout, BrokerUnavailable.

        A record with a later time of delivery is not in the queue of `place`; its offset is the offset in its own
        queue.
        """
        self._links()
        link, deadline = place.link, time.monotonic() + self._timeout_seconds
        late = DispatchTimeout(place.queue.topic, log_pos, self._timeout_seconds)
        queue_key = link.ask(partial(queue_key_of, log_pos=log_pos), deadline, late) if waits else place.queue_key
        if queue_key is None:  # no longer in the log
            raise late
        look = partial(queue_offset_of, queue_key=queue_key, log_pos=log_pos, msg_id=unique_id, history=place.history)
        pause, attended_until = _FIRST_LOOK_SECONDS, 0.0
        while (offset := link.ask(look, deadline, late)) is None:
            now = time.monotonic()
            if now >= attended_until:
                if link.ask(is_attended, deadline, late):
                    attended_until = now + _ATTENDANCE_SECONDS
                else:
                    link.ask(dispatch, deadline, late)
            if now + pause >= deadline:
                raise late
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK_SECONDS)
        return offset

    def _late(self, link: BrokerLink) -> BrokerUnavailable:
        return BrokerUnavailable(link.instance.target, f"no answer within {self._timeout_seconds:g} s")
