"""The messages of a queue that a member holds, and the offset that the member may commit."""

import uuid
from collections.abc import Callable, Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from mqdb.common.compression import COMPRESSED_FLAG
from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from tests.fixtures.queue_owner import Owner

QUEUE = MessageQueue("orders", "broker-a", 0)
LIMITS = FlowLimits(messages=1_000, body_bytes=100 * 1024 * 1024, span=2_000)


def message(offset: int, size: int = 1) -> ReceivedMessage:
    return ReceivedMessage(
        QUEUE, offset, offset, uuid.UUID(int=offset), None, None, {}, b"x" * size, 0, 0, "127.0.0.1", 0, 0, 0, 0, 0
    )


def process_queue(next_offset: int = 0, limits: FlowLimits = LIMITS) -> ProcessQueue:
    return ProcessQueue(QUEUE, OwnedQueue(queue_key=7, epoch=3, next_offset=next_offset, segment=1), limits)


def put(queue: ProcessQueue, offsets: Iterable[int], *, size: int = 1) -> None:
    given = list(offsets)
    assert queue.put([message(offset, size) for offset in given], given[-1] + 1, 1)


def is_told(act: Callable[[list[ReceivedMessage]], None], queue: ProcessQueue, messages: list[ReceivedMessage]) -> bool:
    """Whether the owner of a queue is notified of an act."""
    queue.owner = owner = Owner()
    act(messages)
    return owner.progress == [queue]


def start_all(queue: ProcessQueue) -> dict[int, ReceivedMessage]:
    """Start each message in a separate batch."""
    return {taken[0].queue_offset: taken[0] for taken in iter(lambda: queue.take(1), [])}


# -- how far it may commit ----------------------------------------------------------------------


def test_lowest_unfinished_offset_is_committed() -> None:
    queue = process_queue(10)
    put(queue, [10, 20, 21, 23])
    running = start_all(queue)
    commits = []

    for offset in (20, 21, 10, 23):
        queue.finish([running[offset]])
        commits.append(queue.position().next_offset)

    assert commits == [10, 10, 23, 24]


def test_empty_queue_commits_where_the_last_pull_has_looked_to() -> None:
    queue = process_queue(10)

    queue.put([], next_offset=810, segment=1)

    assert queue.position() == OwnedQueue(queue_key=7, epoch=3, next_offset=810, segment=1)
    assert queue.next_offset == 810


def test_position_of_a_queue_that_stands_still_is_made_once() -> None:
    queue = process_queue()
    put(queue, [0])
    before = queue.position()

    assert queue.position() is before
    queue.finish(queue.take(1))
    assert queue.position().next_offset == 1


def test_filtered_messages_behind_the_last_one_in_hand_are_passed_with_it() -> None:
    queue = process_queue(0)
    queue.put([message(3), message(5)], next_offset=32, segment=1)
    running = start_all(queue)

    queue.finish([running[5]])
    assert queue.position().next_offset == 3
    queue.finish([running[3]])

    assert queue.position().next_offset == 32


def test_pull_that_finds_nothing_does_not_pass_what_is_in_hand() -> None:
    queue = process_queue(0)
    put(queue, [4])

    queue.put([], next_offset=800, segment=1)

    assert queue.position().next_offset == 4


def test_failed_message_holds_the_offset_until_it_is_consumed() -> None:
    queue = process_queue(0)
    put(queue, [0, 1])
    running = start_all(queue)

    queue.fail([running[0]])
    queue.finish([running[1]])
    assert queue.position().next_offset == 0
    assert queue.take(10) == []
    assert queue.retry([running[0]])
    assert queue.take(10) == [running[0]]
    queue.finish([running[0]])

    assert queue.position().next_offset == 2


def test_failed_messages_may_be_done_after_all_also_in_a_queue_that_was_dropped() -> None:
    queue = process_queue(0)
    put(queue, [0, 1, 2])
    running = start_all(queue)
    queue.fail([running[0], running[1]])
    queue.drop()

    queue.finish_failed([running[0], running[1]])
    is_settled = queue.is_settled
    queue.finish([running[2]])

    assert (is_settled, queue.is_settled) == (False, True)
    assert queue.position().next_offset == 3


def test_segment_of_a_commit_is_not_newer_than_its_offset() -> None:
    # A pull starts to look in the segment that was committed: messages in older ones would be lost.
    queue = process_queue(0)
    queue.put([message(0), message(1)], next_offset=2, segment=1)
    queue.put([message(2), message(3)], next_offset=4, segment=5)  # 2 may lie in segment 1 still
    running = start_all(queue)
    found = [(queue.position().next_offset, queue.position().segment)]

    for offset in (0, 1, 2, 3):
        queue.finish([running[offset]])
        found.append((queue.position().next_offset, queue.position().segment))

    assert found == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 5)]
    assert queue.pull_request().segment == 5


def test_commit_names_the_epoch_of_the_latest_take() -> None:
    queue = process_queue(0)

    queue.renew(4)

    assert queue.position().epoch == queue.epoch == 4


# -- the order of starting, and dropping --------------------------------------------------------


def test_messages_start_in_the_order_of_offsets_in_batches_of_the_size_asked_for() -> None:
    queue = process_queue(0)
    put(queue, range(5))
    put(queue, range(5, 7))

    batches = [[message.queue_offset for message in queue.take(3)] for _ in range(4)]

    assert batches == [[0, 1, 2], [3, 4, 5], [6], []]


def test_retried_message_starts_before_those_that_have_never_started() -> None:
    queue = process_queue(0)
    put(queue, range(4))
    failed = queue.take(2)

    queue.fail(failed)
    queue.retry(failed)

    assert [message.queue_offset for message in queue.take(4)] == [0, 1, 2, 3]


def test_dropped_queue_starts_nothing_more_and_settles_with_its_last_listener() -> None:
    queue = process_queue(0)
    put(queue, range(4))
    first, second = queue.take(1), queue.take(1)

    queue.drop()
    told = [queue.take(1) == [], queue.is_settled, is_told(queue.finish, queue, second), queue.is_settled]
    told.append(is_told(queue.finish, queue, first))

    assert told == [True, False, False, False, True]
    assert queue.is_settled
    assert queue.position().next_offset == 2


def test_failure_settles_a_dropped_queue_as_well() -> None:
    queue = process_queue(0)
    put(queue, [0])
    failed = queue.take(1)
    queue.drop()

    assert is_told(queue.fail, queue, failed)
    assert queue.is_settled
    assert not queue.retry(failed)
    assert queue.position().next_offset == 0


def test_dropped_queue_without_listeners_has_settled() -> None:
    queue = process_queue(0)
    put(queue, [0])

    queue.drop()

    assert queue.is_settled


def test_pull_that_comes_back_after_the_drop_is_refused() -> None:
    queue = process_queue(0)
    queue.drop()

    assert not queue.put([message(0)], 1, 1)
    assert queue.position().next_offset == 0


# -- flow control -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "offsets", "size"),
    [
        (FlowLimits(messages=10, body_bytes=10_000, span=1_000), range(10), 1),
        (FlowLimits(messages=100, body_bytes=1_000, span=1_000), range(10), 100),
        (FlowLimits(messages=100, body_bytes=10_000, span=9), [0, 9], 1),
    ],
    ids=["messages", "bytes", "span"],
)
def test_queue_has_room_up_to_each_limit(limits: FlowLimits, offsets: Iterable[int], size: int) -> None:
    queue = process_queue(0, limits)
    put(queue, offsets, size=size)
    assert queue.has_room()

    put(queue, [10])

    assert not queue.has_room()


def test_a_compressed_body_counts_as_it_is_stored_and_is_not_decompressed_for_that() -> None:
    queue = process_queue(0, FlowLimits(messages=100, body_bytes=100, span=1_000))
    broken = message(0, size=101)
    broken.sys_flag = COMPRESSED_FLAG

    queue.put([broken], next_offset=1, segment=1)

    assert not queue.has_room()


def test_full_queue_tells_when_a_quarter_of_it_is_done() -> None:
    queue = process_queue(0, FlowLimits(messages=100, body_bytes=10_000, span=1_000))
    put(queue, range(120))
    assert not queue.has_room()
    running = start_all(queue)

    told = [offset for offset in range(120) if is_told(queue.finish, queue, [running[offset]])]

    assert told == [44]  # 75 are left
    assert queue.has_room()


def test_stuck_message_slows_its_queue_down_by_the_span() -> None:
    queue = process_queue(0, FlowLimits(messages=100, body_bytes=10_000, span=20))
    put(queue, range(22))
    running = start_all(queue)
    told = [offset for offset in range(1, 21) if is_told(queue.finish, queue, [running[offset]])]
    assert not queue.has_room()

    assert told == []
    assert is_told(queue.finish, queue, [running[21]])
    assert queue.has_room()


def test_one_message_at_a_time_is_possible() -> None:
    queue = process_queue(0, FlowLimits(messages=1, body_bytes=1, span=1))
    put(queue, [0, 1])
    assert not queue.has_room()
    running = start_all(queue)

    assert [is_told(queue.finish, queue, [running[offset]]) for offset in range(2)] == [False, True]


# -- against a model ----------------------------------------------------------------------------


class ProcessQueueMachine(RuleBasedStateMachine):
    """Pulls, starts, ends, failures and retries in any order, compared with the set of unfinished offsets."""

    running = Bundle("running")
    failed = Bundle("failed")

    def __init__(self) -> None:
        super().__init__()
        self.queue = process_queue(0, FlowLimits(messages=20, body_bytes=200, span=40))
        self.next_offset = 0
        self.unfinished: dict[int, int] = {}
        self.segments = {0: 1}  # of each offset
        self.segment = 1
        self.is_full = False

    @precondition(lambda self: self.queue.has_room())
    @rule(
        gaps=st.lists(st.integers(1, 10), max_size=6),
        size=st.integers(0, 30),
        rest=st.integers(0, 5),
        rise=st.integers(0, 1),
    )
    def pull(self, gaps: list[int], size: int, rest: int, rise: int) -> None:
        messages = []
        for gap in gaps:
            self._pass(gap - 1)
            messages.append(message(self.next_offset, size))
            self.unfinished[self.next_offset] = size
            self._pass(1)
        if gaps:
            self.segment += rise
            self.segments[self.next_offset - 1] = self.segment
        self._pass(rest)
        assert self.queue.put(messages, self.next_offset, self.segment)

    def _pass(self, count: int) -> None:
        for _ in range(count):
            self.segments[self.next_offset] = self.segment
            self.next_offset += 1

    @rule(target=running, limit=st.integers(1, 5))
    def start(self, limit: int) -> list[ReceivedMessage]:
        return self.queue.take(limit)

    @rule(batch=consumes(running))
    def finish(self, batch: list[ReceivedMessage]) -> None:
        if batch:
            was_full = not self.queue.has_room()
            has_told = is_told(self.queue.finish, self.queue, batch)
            for each in batch:
                del self.unfinished[each.queue_offset]
            assert has_told == (was_full and self.queue.has_room())

    @rule(target=failed, batch=consumes(running))
    def fail(self, batch: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if batch:
            assert not is_told(self.queue.fail, self.queue, batch)
        return batch

    @rule(batch=consumes(failed))
    def retry(self, batch: list[ReceivedMessage]) -> None:
        assert self.queue.retry(batch)

    @invariant()
    def commits_the_lowest_unfinished(self) -> None:
        position = self.queue.position()
        assert position.next_offset == min(self.unfinished, default=self.next_offset)
        assert position.segment <= self.segments.get(position.next_offset, self.segment)

    @invariant()
    def counts_what_is_in_hand(self) -> None:
        assert len(self.queue) == len(self.unfinished)
        if not self.unfinished:
            assert self.queue.has_room()
        if len(self.unfinished) > 20 or sum(self.unfinished.values()) > 200:
            assert not self.queue.has_room()


TestProcessQueueModel = ProcessQueueMachine.TestCase
TestProcessQueueModel.settings = settings(stateful_step_count=40)
