"""Readings: the state of a client that reads a queue, whether or not it owns the queue."""

from collections import deque
from datetime import datetime
from typing import Final

from mqdb.common.proof import Proof, place_of, proof
from mqdb.common.received_message import ReceivedMessage
from mqdb.remoting.consuming.places import Place
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.log.history import History

#: Number of segment changes that are remembered; before the oldest, a pull searches all segments.
_MOST_SEGMENTS: Final = 16


class Reading:
    """One queue, as read by one client of a group."""

    def __init__(self, group: str, place: Place, history: History | None) -> None:
        self.group = group
        self.place = place
        self.queue = place.queue
        self.queue_key = place.queue_key
        #: History of the log in which the queue was found.
        self.history = history
        # Offsets, ascending, from which on no message is in an older segment. They stay true wherever the client reads.
        self._segments: deque[tuple[int, int]] = deque(maxlen=_MOST_SEGMENTS)
        self._newest: tuple[int, int, str, datetime] | None = None
        #: True if the last message was read in another history, and it is not checked yet whether this log has it.
        self.is_doubtful = False
        #: Time of the last reset of the group's offset when the reading began, for a reading without a claim.
        self.reset_at: datetime | None = None
        self.knows_reset = False
        #: Offset at which the client has to continue after a reset, until the client has received it.
        self.goes_on_at: int | None = None
        #: Whether the client was sent this offset and has not pulled since.
        self.is_told = False

    def follow(self, before: "Reading") -> None:
        """Continue the reading of the same queue in an earlier history."""
        self._newest = before._newest
        self.is_doubtful = self._newest is not None

    @property
    def newest(self) -> Proof | None:
        """Proof of the last message that was read, or None."""
        return self._newest and proof(*self._newest)

    def segment_at(self, offset: int) -> int:
        """The segment in which to look for the message at an offset; 0 if unknown."""
        for start, segment in reversed(self._segments):
            if start <= offset:
                return segment
        return 0

    def passed(self, next_offset: int, segment: int, last: ReceivedMessage | None) -> None:
        """Note the end of a pull: its next offset and segment, and the last message that it found."""
        if last is not None:
            self._newest = place_of(last)
        known = self._segments
        if not known or (next_offset > known[-1][0] and segment > known[-1][1]):
            known.append((next_offset, segment))

    def told_at(self, offset: int) -> int | None:
        """The offset from which a pull has to continue instead; None if its own is right, or if it was already told."""
        to, self.goes_on_at = self.goes_on_at, None
        was_told, self.is_told = self.is_told, False
        if to is None or was_told or to == offset:
            return None
        self.goes_on_at, self.is_told = to, True
        return to

    def may_commit(self, offset: int) -> bool:
        """Whether a commit is valid: until the client continues at its new offset, it repeats old offsets."""
        if self.goes_on_at is None:
            return True
        if self.goes_on_at != offset:
            return False
        self.goes_on_at, self.is_told = None, False
        return True


class Claim(Reading):
    """A queue that a client owns under an epoch, with the client's progress."""

    def __init__(
        self, client_id: str, group: str, place: Place, owned: OwnedQueue, *, is_locked: bool, may_go_back: bool
    ) -> None:
        super().__init__(group, place, owned.history)
        self.client_id = client_id
        self.epoch = owned.epoch
        #: The offset that the client last requested or committed.
        self.wanted = owned.next_offset
        #: Whether the queue is consumed in order.
        self.is_locked = is_locked
        #: Whether the client seeks, and may commit a lower offset.
        self.may_go_back = may_go_back
        self.is_lost = False
        #: Number of pulls in progress, and the time of the last pull.
        self.pulls = 0
        self.pulled_at = 0.0
        self._segments.append((owned.next_offset, owned.segment))

    def position(self) -> OwnedQueue:
        """The position of the claim to commit."""
        return OwnedQueue(self.queue_key, self.epoch, self.wanted, self.segment_at(self.wanted), self.history)
