"""Queue offsets of what was sent: dispatch gives them after the send."""

import time
from functools import partial
from typing import Final
from uuid import UUID

from mqdb.broker.dispatch import dispatch, is_attended
from mqdb.broker.query import queue_key_of, queue_offset_of
from mqdb.errors import DispatchTimeout
from mqdb_client.producer.publish_queues import Place

# Pauses between two looks, and between two questions whether anybody dispatches at all.
_FIRST_LOOK_SECONDS: Final = 0.001
_LONGEST_LOOK_SECONDS: Final = 0.05
_ATTENDANCE_SECONDS: Final = 0.2


def find_queue_offset(place: Place, log_pos: int, unique_id: UUID, timeout_seconds: float, waits: bool = False) -> int:
    """The offset of a record; dispatches while nobody else does. Raises DispatchTimeout, BrokerUnavailable.

    A record that waits was not stored in the queue of `place`; its offset is that in the queue where it is.
    """
    link, deadline = place.link, time.monotonic() + timeout_seconds
    late = DispatchTimeout(place.queue.topic, log_pos, timeout_seconds)
    queue_key = link.ask(partial(queue_key_of, log_pos=log_pos), deadline, late) if waits else place.queue_key
    if queue_key is None:  # the log has dropped it
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
