"""Rows 12, 47, 52 to 60, 71 and 74 of the checklist of RocketMQ's behaviours: what happens to failed messages.

A broker process delivers the retries; the delay levels are short. Other rows are tested next to their rule: 46, 48, 49,
51 and 68 to 70 in the tests of the push consumer, 61 to 65 in those of orderly consumption.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.common.group import MessageModel
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import retry_topic
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeMessageContext,
    ConsumeReturnType,
    Message,
)
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import LATER, SUCCESS, Inbox, Member
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import dead_letters, scheduled, set_delay

pytestmark = pytest.mark.filterwarnings("error")


class Failing(Inbox):
    """A listener that fails each message `times` times, by default always."""

    def __init__(self, times: int = 1_000_000, level: int = 0, answer: Any = LATER) -> None:
        super().__init__()
        self.times = times
        self.level = level
        self.answer = answer
        self.failures: Counter[str] = Counter()
        #: When it was called, by time.monotonic().
        self.called_at: list[float] = []

    def __call__(  # type: ignore[override]
        self, messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus | None:
        self.called_at.append(time.monotonic())
        super().__call__(messages)
        context.delay_level_when_next_consume = self.level
        (message,) = messages
        if self.failures[message.message_id] == self.times:
            return SUCCESS
        self.failures[message.message_id] += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: ConsumeConcurrentlyStatus | None = self.answer
        return answer


def test_rows_12_52_53_57_59_a_message_that_always_fails(served: Connection, member: Member) -> None:
    """A message that always fails is delivered 17 times, after levels 3 to 18, and then moves to the DLQ.

    Topic and id stay the same all the way.
    """
    route = topic(served)
    inbox = Failing()
    member(inbox)
    append(served, route, "bad", tag="t")
    wait_until(lambda: dead_letters(served), 30)

    assert scheduled(served) == [(2 + failure, failure, "bad") for failure in range(1, 17)]
    assert [message.reconsume_times for message in inbox.messages] == list(range(17))
    (dead,) = dead_letters(served)
    assert dead[:2] == ("bad", 17)
    assert {message.message_id for message in inbox.messages} == {dead[2]}
    assert {message.topic for message in inbox.messages} == {"orders"}
    assert {message.properties["RETRY_TOPIC"] for message in inbox.messages[1:]} == {"orders"}
    queues = "SELECT count(*) FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = '%DLQ%readers'"
    assert served.scalar(text(queues)) == 1


def test_row_52_a_retry_comes_no_earlier_than_its_level_says(served: Connection, member: Member) -> None:
    set_delay(served, "1500 ms")
    route = topic(served)
    inbox = Failing(times=1)
    member(inbox)
    append(served, route, "bad")
    inbox.wait_for(2)

    first, retry = inbox.messages
    assert retry.store_time - first.store_time >= timedelta(milliseconds=1_500)


@pytest.mark.parametrize("level", [1, 5])
def test_row_54_the_listener_chooses_the_level(served: Connection, member: Member, level: int) -> None:
    route = topic(served)
    inbox = Failing(times=3, level=level)
    member(inbox)
    append(served, route, "bad")
    inbox.wait_for(4)

    assert scheduled(served) == [(level, failure, "bad") for failure in (1, 2, 3)]


def test_row_54_below_0_it_chooses_the_dlq(served: Connection, member: Member) -> None:
    route = topic(served)
    inbox = Failing(level=-1)
    member(inbox)
    append(served, route, "bad")
    wait_until(lambda: dead_letters(served))

    assert len(inbox.messages) == 1
    assert dead_letters(served)[0][:2] == ("bad", 1)
    assert scheduled(served) == []


@pytest.mark.parametrize("answer", [None, ValueError("no stock")], ids=["None", "exception"])
def test_row_55_none_and_exceptions_are_later(served: Connection, member: Member, answer: object) -> None:
    route = topic(served)
    inbox = Failing(times=1, answer=answer)
    member(inbox)
    append(served, route, "bad")
    inbox.wait_for(2)

    assert [message.reconsume_times for message in inbox.messages] == [0, 1]


def test_row_56_only_the_messages_behind_ack_index_come_again(served: Connection, member: Member) -> None:
    route = topic(served)
    append(served, route, *(f"{number}" for number in range(10)))
    dispatch_all(served)
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        if len(messages) == 10:
            context.ack_index = 4
        return inbox(messages)

    member(listener, consume_message_batch_max_size=10)
    inbox.wait_for(15)

    again = [message.body.decode() for message in inbox.messages if message.reconsume_times]
    assert sorted(again) == ["5", "6", "7", "8", "9"]


def test_row_58_a_retry_is_for_the_group_that_failed(served: Connection, member: Member) -> None:
    route = topic(served)
    failing, other = Failing(times=2), Inbox()
    member(failing)
    member(other, group="others")
    append(served, route, "bad")
    failing.wait_for(3)
    other.wait_for(1)
    append(served, route, "last")
    other.wait_for(2)

    assert other.bodies == ["bad", "last"]


def test_row_60_what_cannot_be_sent_back_comes_again_here_after_five_seconds(
    served: Connection, member: Member
) -> None:
    route = topic(served)
    inbox = Failing(times=1)
    served.execute(text("ALTER TABLE mqdb.delay_level RENAME TO delay_level_away"))
    consumer = member(inbox, persist_consumer_offset_interval=timedelta(milliseconds=20))
    append(served, route, "bad")
    inbox.wait_for(2)
    assert inbox.called_at[1] - inbox.called_at[0] >= 5
    served.execute(text("ALTER TABLE mqdb.delay_level_away RENAME TO delay_level"))
    consumer.shutdown()

    assert committed_offsets(served, "readers", route.queue_keys) == {route.queue_keys[0]: 1}
    assert {message.queue.topic for message in inbox.messages} == {"orders"}


def test_row_71_a_listener_that_hangs_loses_its_message_to_level_3(served: Connection, member: Member) -> None:
    route = topic(served)
    leave = threading.Event()
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        if not messages[0].reconsume_times:
            assert leave.wait(30)
        return inbox(messages)

    member(listener, consume_timeout=timedelta(milliseconds=100))
    append(served, route, "stuck")
    inbox.wait_for(1)

    assert [message.reconsume_times for message in inbox.messages] == [1]
    assert scheduled(served) == [(3, 1, "stuck")]
    leave.set()


class Hook:
    """A hook that records its calls, and raises."""

    hook_name = "raising"

    def __init__(self) -> None:
        self.seen: list[object] = []

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.seen.append([message.body for message in context.messages])
        raise ValueError("before")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.seen.append(context.return_type)
        raise ValueError("after")


def test_row_74_hooks_see_each_call_and_what_they_raise_changes_nothing(served: Connection, member: Member) -> None:
    route = topic(served)
    inbox, hook = Failing(times=1), Hook()
    consumer = member(inbox)
    consumer.register_consume_message_hook(hook)
    append(served, route, "bad")
    inbox.wait_for(2)
    wait_until(lambda: len(hook.seen) == 4)

    assert hook.seen == [[b"bad"], ConsumeReturnType.FAILED, [b"bad"], ConsumeReturnType.SUCCESS]
    assert dead_letters(served) == []


def test_why_it_failed_stands_in_the_dlq(served: Connection, member: Member) -> None:
    route = topic(served)
    inbox = Failing(answer=ValueError("no stock of 7"))
    member(inbox, max_reconsume_times=1)
    append(served, route, Message("orders", "bad", keys="order-7"))
    wait_until(lambda: dead_letters(served))

    columns = "exception, error, attempts, topic, keys, origin_queue_id, origin_queue_offset, group_name"
    row = served.execute(text(f"SELECT {columns}, traceback FROM mqdb.dlq")).one()
    assert row[:-1] == ("ValueError", "no stock of 7", 2, "orders", "order-7", 0, 0, "readers")
    assert row.traceback.rstrip().endswith("ValueError: no stock of 7")


def test_retries_are_found_after_the_whole_group_was_away(served: Connection, member: Member) -> None:
    route = topic(served)
    set_delay(served, "1 hour")
    inbox = Failing(times=1)
    append(served, route, *"abc")
    first = member(inbox)
    inbox.wait_for(3)
    first.shutdown()
    set_delay(served, "20 ms")  # what waits for longer than that is due now
    wait_until(lambda: _stored(served, retry_topic("readers")) == 3)

    again = Inbox()
    member(again)
    again.wait_for(3)

    assert sorted(again.bodies) == ["a", "b", "c"]


def _stored(connection: Connection, name: str) -> int:
    count: int = connection.scalar(text("SELECT count(*) FROM mqdb.message WHERE topic = :name"), {"name": name})
    return count


def bodies_of(inboxes: Sequence[Inbox]) -> list[list[str]]:
    return [sorted(inbox.bodies) for inbox in inboxes]


def test_row_47_in_broadcasting_every_member_gets_every_message_and_none_again(
    served: Connection, member: Member, tmp_path_factory: pytest.TempPathFactory
) -> None:
    route = topic(served, queues=2)
    inboxes: list[Inbox] = [Failing(), Inbox()]
    for number, inbox in enumerate(inboxes):
        member(
            inbox,
            message_model=MessageModel.BROADCASTING,
            instance_name=f"reader-{number}",
            local_offset_directory=tmp_path_factory.mktemp("offsets"),
        )
    for queue_id in (0, 1):
        append(served, route, *(f"{queue_id} {number}" for number in range(20)), queue_id=queue_id)
    for inbox in inboxes:
        inbox.wait_for(40)

    expected = sorted(f"{queue_id} {number}" for queue_id in (0, 1) for number in range(20))
    assert bodies_of(inboxes) == [expected, expected]
    assert scheduled(served) == []
