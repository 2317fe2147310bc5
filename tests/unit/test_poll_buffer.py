"""The buffer that polls read from: seeks that overtake pulls, corrections, pauses, limits, and committable offsets."""

import uuid
from collections.abc import Iterable

import pytest

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import IllegalState
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.queues.process_queue import FlowLimits
from mqdb_client.lite_pull.assigned_queue import AssignedQueue
from mqdb_client.lite_pull.poll_buffer import PollBuffer
from tests.fixtures.queue_owner import Owner

QUEUE, OTHER = (MessageQueue("orders", "broker-a", queue_id) for queue_id in range(2))
LIMITS = FlowLimits(messages=1_000, body_bytes=100 * 1024 * 1024, span=2_000)


class Buffer(PollBuffer):
    """A buffer, and the calls that it has made."""

    def __init__(self, *, auto_commit: bool = True, threshold_for_all: int = 10_000) -> None:
        self.owner = Owner()
        super().__init__(
            "readers",
            auto_commit=auto_commit,
            threshold_for_all=threshold_for_all,
        )

    def begin(
        self, queue: MessageQueue = QUEUE, *, offset: int = 0, epoch: int = 1, history: int | None = None
    ) -> AssignedQueue:
        """Start reading a queue."""
        assigned = self.make_queue(queue, OwnedQueue(queue.queue_id, epoch, offset, 1, history), LIMITS)
        assigned.owner = self.owner
        self.add(assigned)
        return assigned

    def offsets(self, limit: int = 10) -> list[int]:
        """The offsets of the messages that a poll returns without waiting."""
        return [message.queue_offset for message in self.poll(limit, 0)]


def bring(buffer: Buffer, assigned: AssignedQueue, offsets: Iterable[int]) -> bool:
    """Add messages to a queue, as a pull does that began earlier."""
    messages = [message(assigned.queue, offset) for offset in offsets]
    if is_taken := assigned.put(messages, messages[-1].queue_offset + 1, 1):
        buffer.deliver(assigned, len(messages))
    return is_taken


def message(queue: MessageQueue, offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        queue, offset, offset, uuid.UUID(int=offset), None, None, {}, b"x", 0, 0, "127.0.0.1", 0, 0, 0, 0, 0
    )


def pulled(buffer: Buffer, assigned: AssignedQueue, offsets: Iterable[int]) -> None:
    """Run a whole pull."""
    assert assigned.has_room()
    assert bring(buffer, assigned, offsets)


# -- seek ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("history", "next_offset"), [(1, 4), (2, 7)], ids=["same history", "another"])
def test_a_seek_while_a_queue_is_away_counts_unless_its_log_has_another_history(history: int, next_offset: int) -> None:
    buffer = Buffer()
    buffer.choose(frozenset({QUEUE}))
    before = buffer.begin(history=1)
    pulled(buffer, before, range(5))
    assert buffer.offsets() == [0, 1, 2, 3, 4]
    buffer.remove(before)

    buffer.seek(QUEUE, 4)
    after = buffer.begin(offset=7, epoch=2, history=history)

    assert after.next_offset == next_offset


def test_what_a_pull_brings_after_a_seek_is_not_taken() -> None:
    buffer = Buffer()
    assigned = buffer.begin()
    pulled(buffer, assigned, range(5))
    assert assigned.has_room()  # the next one begins

    buffer.seek(QUEUE, 100)

    assert not bring(buffer, assigned, range(5, 10))
    assert (assigned.next_offset, assigned.pull_request().segment, len(assigned)) == (100, 0, 0)
    pulled(buffer, assigned, range(100, 103))
    assert buffer.offsets() == [100, 101, 102]


def test_a_seek_outlives_a_correction_that_it_has_overtaken() -> None:
    """A seek survives a correction that it has overtaken.

    The pull with the illegal offset drops the queue, and another replaces it under the same epoch.
    """
    buffer = Buffer()
    old = buffer.begin(offset=5_000)
    assert old.has_room()

    buffer.seek(QUEUE, 70)
    old.drop()
    assert not old.has_room()
    buffer.remove(old)
    new = buffer.begin(offset=100)

    assert new.next_offset == 70
    pulled(buffer, new, [70])
    assert buffer.offsets() == [70]


def test_a_pause_outlives_a_correction_but_not_a_move() -> None:
    buffer = Buffer()
    for epoch, is_paused in ((1, True), (2, False)):
        old = buffer.begin(epoch=1)
        buffer.pause([QUEUE])
        old.drop()
        buffer.remove(old)

        new = buffer.begin(epoch=epoch)

        assert new.has_room() is not is_paused


def test_what_was_handed_out_before_a_seek_is_done() -> None:
    buffer = Buffer()
    assigned = buffer.begin()
    pulled(buffer, assigned, range(5))
    buffer.offsets()

    buffer.seek(QUEUE, 100)
    buffer.poll(10, 0)  # what it acknowledges is not there any more

    assert assigned.position().next_offset == 100


def test_a_queue_that_is_not_assigned_cannot_be_sought_in() -> None:
    buffer = Buffer()
    buffer.remove(buffer.begin())

    with pytest.raises(IllegalState, match="orders@broker-a:0 is not assigned"):
        buffer.seek(QUEUE, 0)


# -- what is read -------------------------------------------------------------------------------


def test_nothing_is_pulled_while_all_queues_together_hold_too_much() -> None:
    buffer = Buffer(threshold_for_all=10)
    first, second = buffer.begin(QUEUE), buffer.begin(OTHER)
    pulled(buffer, first, range(6))
    pulled(buffer, second, range(5))
    assert not first.has_room()
    assert not second.has_room()

    assert len(buffer.offsets(limit=6)) == 6
    assert buffer.owner.progress == []
    buffer.offsets(limit=1)  # by this the six are done

    assert len(buffer.owner.progress) == 1
    assert first.has_room()


def test_a_queue_that_is_moved_away_is_not_returned_and_settles_with_the_next_poll() -> None:
    buffer = Buffer()
    assigned = buffer.begin()
    pulled(buffer, assigned, range(20))
    assert buffer.offsets() == list(range(10))

    assigned.drop()
    buffer.remove(assigned)
    settled_before = assigned.is_settled
    assert buffer.offsets() == []

    assert (settled_before, assigned.is_settled) == (False, True)
    assert buffer.owner.progress == [assigned]
    assert assigned.position().next_offset == 10


def test_a_queue_with_much_gives_way_to_the_others() -> None:
    buffer = Buffer()
    for queue in (QUEUE, OTHER):
        pulled(buffer, buffer.begin(queue), range(9))

    turns = [[message.queue.queue_id for message in buffer.poll(3, 0)] for _ in range(6)]

    assert turns == [[0] * 3, [1] * 3] * 3


# -- what may be committed ----------------------------------------------------------------------


@pytest.mark.parametrize("auto_commit", [True, False])
def test_what_was_agreed_on_may_be_committed_before_it_is_done(auto_commit: bool) -> None:
    """Agreed offsets may be committed before the commit is done.

    The queue is given back only once the commit is stored, because the next owner must not begin earlier.
    """
    buffer = Buffer(auto_commit=auto_commit)
    assigned = buffer.begin()
    pulled(buffer, assigned, range(20))
    buffer.offsets()
    handed = buffer.handed
    assigned.drop()

    [(_, agreed, _)] = buffer.agree()
    assert not assigned.is_settled
    between = assigned.position()
    buffer.acknowledge(handed)
    buffer.acknowledge(handed)

    assert (agreed.next_offset, between, assigned.position()) == (10, agreed, agreed)
    assert buffer.owner.progress == [assigned]


def test_a_commit_acknowledges_nothing_that_was_polled_meanwhile() -> None:
    buffer = Buffer()
    assigned = buffer.begin()
    pulled(buffer, assigned, range(20))
    buffer.offsets()
    handed = buffer.handed

    buffer.offsets()  # by another thread
    buffer.acknowledge(handed)

    assert assigned.position().next_offset == 10


def test_without_auto_commit_only_what_was_agreed_on_may_be_committed() -> None:
    buffer = Buffer(auto_commit=False)
    assigned = buffer.begin()
    pulled(buffer, assigned, range(20))
    buffer.offsets()
    buffer.offsets()
    assert assigned.position().next_offset == 0

    [(queue, agreed, _)] = buffer.agree_on({QUEUE: 7})

    assert (queue, agreed.next_offset) == (QUEUE, 7)
    assert assigned.position() == agreed
    with pytest.raises(IllegalState):
        buffer.agree_on({OTHER: 7})


def test_the_newest_position_is_known_of_a_queue_that_is_not_read_any_more() -> None:
    buffer = Buffer()
    assigned = buffer.begin()
    outdated = assigned.position()
    pulled(buffer, assigned, range(10))
    buffer.offsets()
    assigned.drop()
    buffer.remove(assigned)
    buffer.offsets()

    assert buffer.latest(outdated).next_offset == 10
    assert buffer.latest(outdated._replace(epoch=9)).next_offset == 0


def test_after_the_end_what_was_handed_out_is_not_done() -> None:
    buffer = Buffer()
    assigned = buffer.begin()
    pulled(buffer, assigned, range(20))
    buffer.offsets()
    buffer.offsets()

    buffer.close()
    assigned.drop()

    assert assigned.is_settled
    assert assigned.position().next_offset == 10
    assert buffer.poll(10, 60) == []
