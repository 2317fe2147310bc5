"""The code of a tag is computed when a message is sent; every copy of the message has the code of its original."""

import json
import random
import string
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.consumers.pull import pull
from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.broker.schedule import delay, timers
from mqdb.common.failure import Failure
from mqdb.common.message import Message, MessageQueue
from mqdb.common.property import TAGS_CODE
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.retry import Retry
from mqdb.common.topic import TRANS_CHECK_MAX_TIME_TOPIC, dlq_topic, retry_topic
from mqdb.selector.tags import parse_tag_expression, tag_code
from mqdb.store.engine import driver
from mqdb.store.topics.topics import TopicRoute, find_topic
from mqdb_client import ConsumeConcurrentlyStatus
from tests.fixtures.broker import append, bodies, dispatch_all, request, topic
from tests.fixtures.consumers import LATER, Inbox, Member
from tests.fixtures.delay import move_clock, records
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import set_delay
from tests.fixtures.transactions import COMMIT, Checker, HalfSent, send_half

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

LARGE = "".join(random.Random(1).choices(string.ascii_letters, k=32_000))

#: A way of a message: after the first step it is stored, after the second it is copied to the topic that this yields.
Way = Callable[[Connection, TopicRoute, str | None], Iterator[str]]


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    update_group(broker, "billing")
    return topic(broker, "orders")


def forbid_hashing(connection: Connection) -> None:
    """Make every computation of a code in the database fail."""
    for name, argument, result in (("tag_code", "tag", "bigint"), ("java_hash", "string", "integer")):
        driver(connection).execute(
            f"""CREATE OR REPLACE FUNCTION mqdb.{name}({argument} text) RETURNS {result} LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'the hash of % is worked out again', left({argument}, 20); END $$""".encode()
        )


def deliver(connection: Connection) -> None:
    """Deliver everything that is due."""
    dispatch_all(connection)
    delay.deliver_due(connection)
    timers.deliver_due(connection)
    dispatch_all(connection)


def fail(connection: Connection, log_pos: int, *, for_good: bool = False) -> None:
    """Have the group send a message back."""
    failure = Failure.later("client-1", datetime.now(UTC))
    queue = MessageQueue("orders", "broker-a", 0)
    send_back(connection, "billing", [SendBackRequest(log_pos, queue, 0, failure, Retry(-1 if for_good else 0))])


# -- the ways -------------------------------------------------------------------------------------


def delay_level(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    append(broker, route, Message("orders", "a", tag, delay_level=1))
    yield ""
    dispatch_all(broker)
    move_clock(broker, 2 * SECOND)
    deliver(broker)
    yield "orders"


def timer_from_its_slot(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    append(broker, route, Message("orders", "a", tag, delay=HOUR))
    yield ""
    deliver(broker)
    move_clock(broker, 2 * HOUR)
    deliver(broker)
    yield "orders"


def timer_that_is_due_when_it_is_met(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    append(broker, route, Message("orders", "a", tag, delay=HOUR))
    yield ""
    move_clock(broker, 2 * HOUR)
    deliver(broker)
    yield "orders"


def timer_behind_the_others(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    deliver(broker)
    move_clock(broker, -3 * HOUR)
    append(broker, route, Message("orders", "a", tag, delay=HOUR))
    yield ""
    deliver(broker)
    assert broker.scalar(text("SELECT count(*) FROM mqdb.timer WHERE slot = 0")) == 1
    move_clock(broker, HOUR)
    deliver(broker)
    yield "orders"


def sent_by_sql(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    broker.execute(text("SELECT mqdb.send('orders', 'a'::text, CAST(:tag AS text), delay_level => 1)"), {"tag": tag})
    yield ""
    dispatch_all(broker)
    move_clock(broker, 2 * SECOND)
    deliver(broker)
    yield "orders"


def retry(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    (log_pos,) = append(broker, route, Message("orders", "a", tag))
    yield ""
    fail(broker, log_pos)
    dispatch_all(broker)
    move_clock(broker, HOUR)
    deliver(broker)
    yield retry_topic("billing")


def retry_of_a_delayed_message(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    yield from delay_level(broker, route, tag)
    fail(broker, records(broker)[0]["log_pos"])
    deliver(broker)
    move_clock(broker, HOUR)
    deliver(broker)
    yield retry_topic("billing")


def dead_letter(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    (log_pos,) = append(broker, route, Message("orders", "a", tag))
    yield ""
    fail(broker, log_pos, for_good=True)
    yield dlq_topic("billing")


def dead_letter_after_a_retry(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    yield from retry(broker, route, tag)
    fail(broker, records(broker, retry_topic("billing"))[0]["log_pos"], for_good=True)
    yield dlq_topic("billing")


def committed(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    half = send_half(broker, route, "a", tag=tag)
    yield ""
    assert half.end(broker, COMMIT).has_changed
    yield "orders"


def given_up(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    send_half(broker, route, "a", tag=tag)
    yield ""
    checker = Checker(broker, transaction_timeout=SECOND, reserved=HOUR)
    checker.after(2 * HOUR)
    checker.after(HOUR)
    yield TRANS_CHECK_MAX_TIME_TOPIC


def redriven(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    yield from dead_letter(broker, route, tag)
    redrive_messages(broker, [records(broker, dlq_topic("billing"))[0]["log_pos"]], Redrive("all"))
    yield retry_topic("billing")


def redriven_to_a_topic(broker: Connection, route: TopicRoute, tag: str | None) -> Iterator[str]:
    topic(broker, "elsewhere")
    yield from dead_letter(broker, route, tag)
    letter = records(broker, dlq_topic("billing"))[0]["log_pos"]
    redrive_messages(broker, [letter], Redrive("all", target_topic="elsewhere"))
    yield "elsewhere"


WAYS: tuple[Way, ...] = (
    delay_level,
    timer_from_its_slot,
    timer_that_is_due_when_it_is_met,
    timer_behind_the_others,
    sent_by_sql,
    retry,
    retry_of_a_delayed_message,
    dead_letter,
    dead_letter_after_a_retry,
    committed,
    given_up,
    redriven,
    redriven_to_a_topic,
)


TAGS = {
    "plain": "Paid",
    "lowest": "polygenelubricants",
    "zero": "f5a5a608",
    "surrogates": "\U0001f680 bezahlt",
    "large": LARGE,
    "none": None,
}

#: Each way with one of the tags, each tag by two ways or three; the others are `long`.
COPIES = [
    pytest.param(way, tag, id=f"{way.__name__}-{name}", marks=() if (place - number) % 6 == 0 else pytest.mark.long)
    for place, way in enumerate(WAYS)
    for number, (name, tag) in enumerate(TAGS.items())
]


@pytest.mark.parametrize(("way", "tag"), COPIES)
def test_a_copy_has_the_code_of_its_original(broker: Connection, route: TopicRoute, way: Way, tag: str | None) -> None:
    steps = way(broker, route, tag)
    next(steps)
    forbid_hashing(broker)
    *_, name = steps
    dispatch_all(broker)

    (copy,) = records(broker, name)
    entry = broker.scalar(text("SELECT tags_code FROM mqdb.consume_queue WHERE log_pos = :p"), {"p": copy["log_pos"]})
    assert (copy["tags_code"], entry, copy["tags"]) == (tag_code(tag), tag_code(tag), tag)
    assert TAGS_CODE not in copy["properties"]
    found = find_topic(broker, name)
    assert found is not None
    [result], _ = pull(broker, [request(found)], filter=parse_tag_expression(tag))
    assert bodies(result.messages) == ["a"]


def test_a_consumer_of_a_tag_gets_what_came_by_any_way(broker: Connection, route: TopicRoute, member: Member) -> None:
    update_group(broker, "readers", retry_max_times=1)
    set_delay(broker, "20 ms")
    tag = LARGE
    failures = {"comes again": 1, "dies": 2}

    class Failing(Inbox):
        def __call__(self, messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
            (message,) = messages
            if message.reconsume_times < failures.get(message.body.decode(), 0):
                return LATER
            return super().__call__(messages)

    append(broker, route, Message("orders", "of a level", tag, delay_level=1))
    append(broker, route, Message("orders", "timed", tag, delay=SECOND / 10))
    append(broker, route, *(Message("orders", body, tag) for body in failures), Message("orders", "another", "Unpaid"))
    half = send_half(broker, route, "committed", tag=tag)
    forbid_hashing(broker)

    inbox = Failing()
    member(inbox, expression=tag)
    assert half.end(broker, COMMIT).has_changed

    def has_all(count: int) -> bool:
        deliver(broker)
        return len(inbox.messages) >= count

    wait_until(lambda: has_all(4))
    wait_until(lambda: bool(records(broker, dlq_topic("readers"))))
    failures.clear()
    redrive_messages(broker, [records(broker, dlq_topic("readers"))[0]["log_pos"]], Redrive("all"))
    wait_until(lambda: has_all(5))

    assert sorted(inbox.bodies) == ["comes again", "committed", "dies", "of a level", "timed"]
    assert {message.tag for message in inbox.messages} == {tag}
    assert all(TAGS_CODE not in message.properties for message in inbox.messages)


# -- records that say no code, or an odd one ------------------------------------------------------


SYSTEM_TOPICS = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC")


@pytest.mark.parametrize("system_topic", SYSTEM_TOPICS)
def test_a_record_that_says_no_code_has_its_tag_hashed(
    broker: Connection, route: TopicRoute, system_topic: str
) -> None:
    for said in (None, "", "abc", "1.5", "9" * 30, [1], "\u0663", "1\n"):
        assert code_of_the_copy(broker, system_topic, said) == tag_code("Paid"), said


@pytest.mark.parametrize("system_topic", SYSTEM_TOPICS)
def test_a_number_that_a_record_says_is_taken_and_stops_no_service(
    broker: Connection, route: TopicRoute, system_topic: str
) -> None:
    for said, code in {"-9999999999": -(2**31), "9999999999": 9_999_999_999, "-0": 0, "7": 7}.items():
        assert code_of_the_copy(broker, system_topic, said) == code, said


def code_of_the_copy(broker: Connection, system_topic: str, said: object) -> int:
    """The code in the copy of a record with the tag Paid that was inserted into a system topic by hand."""
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": "senders"}
    stored = (
        driver(broker)
        .execute(
            """INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, tags, properties, body)
           SELECT queue_key, now(), 1700000000000, gen_random_uuid(), 'test', 'Paid', %s, 'odd'
           FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = %s AND queue_id = 0
           RETURNING log_pos, msg_id""",
            [json.dumps(properties if said is None else properties | {TAGS_CODE: said}), system_topic],
        )
        .fetchone()
    )
    assert stored is not None
    deliver(broker)
    if system_topic == "RMQ_SYS_TRANS_HALF_TOPIC":
        assert HalfSent("senders", *stored).end(broker, COMMIT).has_changed
    return int(records(broker)[-1]["tags_code"])
