"""Readings: how a client reads one queue, whether or not it owns it."""

from collections import deque
from datetime import datetime
from typing import Final

from mqdb.common.proof import Proof, place_of, proof
from mqdb.common.received_message import ReceivedMessage
from mqdb.remoting.consuming.places import Place
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.log.history import History

#: So many changes of the segment are remembered; before the oldest one a pull looks everywhere.
_MOST_SEGMENTS: Final = 16


class Reading:
    """One queue as one client of a group reads it."""

    def __init__(self, group: str, place: Place, history: History | None) -> None:
        self.group = group
        self.place = place
        self.queue = place.queue
        self.queue_key = place.queue_key
        #: Of the log in which the queue was found.
        self.history = history
        # From which offset on no message lies in an older segment; ascending. It stays true wherever the client reads.
        self._segments: deque[tuple[int, int]] = deque(maxlen=_MOST_SEGMENTS)
        self._newest: tuple[int, int, str, datetime] | None = None
        #: True while the last message was read in another history, and nobody has looked whether this log has it.
        self.is_doubtful = False
        #: When somebody had set the group's offset last, as of when the reading began; of one without a claim.
        self.reset_at: datetime | None = None
        self.knows_reset = False
        #: Where the client has to go on, until it has been told: its offset was set by somebody.
        self.goes_on_at: int | None = None
        #: Whether the client got this offset, and has not come again since.
        self.is_told = False

    def follow(self, before: "Reading") -> None:
        """The client has read the queue before, in another history."""
        self._newest = before._newest
        self.is_doubtful = self._newest is not None

    @property
    def newest(self) -> Proof | None:
        """The last message that was read."""
        return self._newest and proof(*self._newest)

    def segment_at(self, offset: int) -> int:
        """The segment in which to look for the message at an offset; 0 if it is not known."""
        for start, segment in reversed(self._segments):
            if start <= offset:
                return segment
        return 0

    def passed(self, next_offset: int, segment: int, last: ReceivedMessage | None) -> None:
        """A pull goes on there; `last` is the last message that it has found."""
        if last is not None:
            self._newest = place_of(last)
        known = self._segments
        if not known or (next_offset > known[-1][0] and segment > known[-1][1]):
            known.append((next_offset, segment))

    def told_at(self, offset: int) -> int | None:
        """The offset from which a pull has to continue instead; None if its own is right, or it was answered before."""
        to, self.goes_on_at = self.goes_on_at, None
        was_told, self.is_told = self.is_told, False
        if to is None or was_told or to == offset:
            return None
        self.goes_on_at, self.is_told = to, True
        return to

    def may_commit(self, offset: int) -> bool:
        """Whether a commit is valid: until the client continues at its new offset, it repeats old ones."""
        if self.goes_on_at is None:
            return True
        if self.goes_on_at != offset:
            return False
        self.goes_on_at, self.is_told = None, False
        return True


class Claim(Reading):
    """A queue that a client owns under an epoch, and how far it has come."""

    def __init__(
        self, client_id: str, group: str, place: Place, owned: OwnedQueue, *, is_locked: bool, may_go_back: bool
    ) -> None:
        super().__init__(group, place, owned.history)
        self.client_id = client_id
        self.epoch = owned.epoch
        #: The progress of the client, by its last request.
        self.wanted = owned.next_offset
        #: Whether it is consumed in order.
        self.is_locked = is_locked
        #: Whether the client seeks, and commits where it is then.
        self.may_go_back = may_go_back
        self.is_lost = False
        #: Pulls under way, and when the last one came.
        self.pulls = 0
        self.pulled_at = 0.0
        self._segments.append((owned.next_offset, owned.segment))

    def position(self) -> OwnedQueue:
        """The position to commit."""
        return OwnedQueue(self.queue_key, self.epoch, self.wanted, self.segment_at(self.wanted), self.history)
