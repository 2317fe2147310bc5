"""The lite pull consumer: polls, commits, seek and pause."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.offsets import take_queues
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import IllegalState, ParameterInvalid, QueueLost, QueueNotFound, RouteNotFound
from mqdb_client import LitePullConsumer
from tests.fixtures.broker import append, bodies, dispatch_all, topic
from tests.fixtures.lite_pull import Lite, committed, drained, fill, numbers, polled, queue_of
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing, is_awaited

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

SECOND = timedelta(seconds=1)
NEVER = timedelta(hours=1)
NOTHING = timedelta(0)


# -- poll ---------------------------------------------------------------------------------------


def test_a_poll_returns_up_to_a_batch_and_messages_of_a_queue_come_in_order(broker: Connection, lite: Lite) -> None:
    fill(broker, queues=3, count=100)
    consumer = lite("orders")

    batches: list[list[ReceivedMessage]] = []
    while sum(map(len, batches)) < 300:
        batches.append(consumer.poll(timedelta(seconds=30)))
        assert batches[-1]
    received = [message for batch in batches for message in batch]

    assert consumer.poll(NOTHING) == []
    assert max(map(len, batches)) == 10
    for queue_id in range(3):
        of_queue = [message.queue_offset for message in received if message.queue == queue_of(queue_id)]
        assert of_queue == list(range(100))


def test_a_queue_with_much_does_not_keep_others_from_their_turns(broker: Connection, lite: Lite) -> None:
    route = topic(broker, queues=2)
    append(broker, route, *numbers(0, 500))
    append(broker, route, "other", queue_id=1)
    dispatch_all(broker)
    consumer = lite("orders", auto_commit=False)
    wait_until(lambda: consumer.poll(NOTHING))
    consumer.seek_to_begin(queue_of(0))
    consumer.seek_to_begin(queue_of(1))

    assert "other" in polled_until("other", consumer, polls=60)


def polled_until(body: str, consumer: LitePullConsumer, polls: int) -> list[str]:
    found: list[str] = []
    for _ in range(polls):
        found += bodies(consumer.poll(SECOND))
        if body in found:
            return found
    return found


def test_a_poll_wakes_when_a_message_arrives(broker: Connection, lite: Lite) -> None:
    """A poll without a timeout, longer than the longest wait of a thread, wakes when a message arrives."""
    route = topic(broker)
    consumer = lite("orders", poll_timeout=timedelta.max, topic_metadata_check_interval=timedelta.max)
    waiting = Doing(consumer.poll)

    append(broker, route, "x")

    assert bodies(waiting.result()) == ["x"]
    assert waiting.seconds < 10


def test_a_poll_that_finds_nothing_ends_with_its_timeout(broker: Connection, lite: Lite) -> None:
    topic(broker)
    consumer = lite("orders")
    begin = time.monotonic()

    assert consumer.poll(timedelta(milliseconds=300)) == []
    assert 0.3 <= time.monotonic() - begin < 5
    assert consumer.poll(NOTHING) == []
    with pytest.raises(ParameterInvalid, match="poll_timeout"):
        consumer.poll(timedelta(seconds=-1))


@pytest.mark.of_threads("a task does not wait for a condition")
def test_a_poll_returns_when_another_thread_shuts_the_consumer_down(broker: Connection, lite: Lite) -> None:
    topic(broker)
    consumer = lite("orders", poll_timeout=timedelta(seconds=60))
    waiting = Doing(consumer.poll)
    assert consumer._running is not None
    wake = consumer._running.buffer._wake
    wait_until(lambda: is_awaited(wake))

    consumer.shutdown()

    assert waiting.result() == []
    assert waiting.seconds < 30
    assert not consumer.is_running
    with pytest.raises(IllegalState, match="shut down"):
        consumer.poll()


def test_an_iteration_goes_on_until_shutdown(broker: Connection, lite: Lite) -> None:
    route = fill(broker, count=25)
    consumer = lite("orders")
    received: list[str] = []

    def read() -> None:
        for message in consumer:
            received.append(message.body.decode())

    reading = Doing(read)
    wait_until(lambda: len(received) == 25)
    append(broker, route, "25")
    wait_until(lambda: len(received) == 26)
    consumer.shutdown()
    reading.result()

    assert received == numbers(0, 26)


def test_what_an_iteration_has_not_come_to_is_not_consumed(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders")

    for message in consumer:
        if message.body == b"4":
            break
    consumer.shutdown()

    assert committed(broker, route) == [4]


def test_only_what_the_tag_expression_names_is_returned(broker: Connection, lite: Lite) -> None:
    route = topic(broker)
    for number in range(40):
        append(broker, route, f"{number}", tag=("BB", "Aa", "C")[number % 3])  # the first two have one code
    consumer = lite("orders", "Aa")

    assert polled(consumer, 13) == [f"{number}" for number in range(40) if number % 3 == 1]
    assert drained(consumer) == []


def test_reading_ahead_stops_at_the_limits_and_goes_on_when_there_is_room(broker: Connection, lite: Lite) -> None:
    fill(broker, queues=4, count=75)
    per_queue = lite("orders", group="one", pull_threshold_for_queue=50)
    altogether = lite("orders", group="two", pull_threshold_for_all=100)

    assert len(drained(per_queue, 300)) == 300
    assert len(drained(altogether, 300)) == 300


# -- commit -------------------------------------------------------------------------------------


def test_what_a_poll_has_returned_is_committed_after_the_next_one(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders", auto_commit_interval=SECOND)
    polled(consumer, 10)
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() - begin > 2.2)
    assert committed(broker, route) == [0]

    polled(consumer, 10)
    wait_until(lambda: committed(broker, route) != [0])

    assert committed(broker, route) == [10]


def test_commit_covers_all_that_was_returned_and_is_done_when_it_returns(broker: Connection, lite: Lite) -> None:
    route = fill(broker, queues=2)
    consumer = lite("orders", auto_commit=False)
    seen = polled(consumer, 10) + polled(consumer, 10)

    consumer.commit()

    assert committed(broker, route) == [sum(body.startswith(f"{queue}-") for body in seen) for queue in range(2)]
    assert sum(committed(broker, route)) == 20


def test_without_auto_commit_nothing_else_commits(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders", auto_commit=False, auto_commit_interval=SECOND)
    polled(consumer, 10)
    consumer.commit()
    polled(consumer, 20)

    consumer.shutdown()

    assert committed(broker, route) == [10]


def test_an_offset_of_ones_own_is_committed_back_as_well(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders", auto_commit=False)
    polled(consumer, 20)
    commits = []

    for offset in (17, 3):
        consumer.commit({queue_of(0): offset})
        commits.append((committed(broker, route), consumer.committed(queue_of(0))))
    consumer.shutdown()

    assert commits == [([17], 17), ([3], 3)]
    assert polled(lite("orders"), 10) == numbers(3, 13)


def test_a_commit_of_what_cannot_be_is_refused(broker: Connection, lite: Lite) -> None:
    fill(broker)
    consumer = lite("orders")

    with pytest.raises(ParameterInvalid, match="offset = -1"):
        consumer.commit({queue_of(0): -1})
    with pytest.raises(IllegalState, match=r"orders@broker-a:7 is not assigned"):
        consumer.commit({queue_of(7): 1})
    for wrong in ([queue_of(0)], queue_of(0), 5):
        given: Any = wrong
        with pytest.raises(
            ParameterInvalid, match=r"offsets = .*; give a dict of MessageQueues and their next offsets"
        ):
            consumer.commit(given)


def test_a_shutdown_commits_what_was_done_before_the_last_poll(broker: Connection, lite: Lite) -> None:
    """A shutdown commits the messages that were consumed before the last poll.

    RocketMQ persists the offset store at shutdown as well; it holds the messages returned when the last poll began.
    """
    route = fill(broker)
    consumer = lite("orders", auto_commit_interval=NEVER)
    polled(consumer, 10)
    polled(consumer, 10)

    consumer.shutdown()

    assert committed(broker, route) == [10]
    assert polled(lite("orders"), 10) == numbers(10, 20)


def test_a_block_that_ends_well_has_consumed_what_was_returned(broker: Connection, lite: Lite) -> None:
    route = fill(broker)

    with lite("orders", is_started=False) as consumer:
        polled(consumer, 10)

    assert committed(broker, route) == [10]


def test_a_block_that_ends_with_an_error_has_not_consumed_the_last_poll(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders", is_started=False)

    def fail() -> None:
        with consumer:
            polled(consumer, 10)
            polled(consumer, 10)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()

    assert committed(broker, route) == [10]


def test_a_commit_of_a_queue_that_another_member_has_taken_is_refused(
    broker: Connection, lite: Lite, caplog: pytest.LogCaptureFixture
) -> None:
    route = fill(broker, queues=2)
    consumer = lite("orders", auto_commit=False)
    polled(consumer, 10)
    take_queues(broker, "readers", "thief", [route.queue_keys[0]], force=True)

    with pytest.raises(QueueLost, match=r"orders@broker-a:0"):
        consumer.commit()
    wait_until(lambda: "group readers lost queue orders@broker-a:0" in caplog.text)


# -- seek and pause -----------------------------------------------------------------------------


def test_seek_forgets_what_is_in_hand_and_on_its_way(broker: Connection, lite: Lite) -> None:
    fill(broker, count=500)
    consumer = lite("orders", auto_commit=False)
    polled(consumer, 10)

    for offset in (400, 0, 499, 77) * 5:
        consumer.seek(queue_of(0), offset)
        assert polled(consumer, 1 if offset == 499 else 10)[0] == f"{offset}"


def test_seek_to_begin_and_to_end(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders")
    polled(consumer, 10)

    consumer.seek_to_begin(queue_of(0))
    again = polled(consumer, 10)
    consumer.seek_to_end(queue_of(0))
    nothing = drained(consumer)
    append(broker, route, "new")

    assert (again, nothing, polled(consumer, 1)) == (numbers(0, 10), [], ["new"])


def test_seek_keeps_within_what_the_queue_holds(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 10"))
    consumer = lite("orders")

    for offset in (9, 31, -1, "12", 12.0, None):
        with pytest.raises(ParameterInvalid, match=r"from the min offset 10 to the max offset 30 of queue orders@"):
            consumer.seek(queue_of(0), offset)  # type: ignore[arg-type]
    consumer.seek(queue_of(0), 30)
    append(broker, route, "30")

    assert polled(consumer, 1) == ["30"]


def test_seek_in_a_queue_that_is_not_assigned_is_refused(broker: Connection, lite: Lite) -> None:
    fill(broker)
    topic(broker, "bills")
    consumer = lite("orders")

    with pytest.raises(IllegalState, match="bills@broker-a:0 is not assigned"):
        consumer.seek(queue_of(0, "bills"), 0)
    with pytest.raises(QueueNotFound):
        consumer.seek(queue_of(1), 0)
    with pytest.raises(RouteNotFound):
        consumer.seek(queue_of(0, "nothing"), 0)
    with pytest.raises(ParameterInvalid, match="must belong to a broker of the settings: broker-a"):
        consumer.seek(queue_of(0, broker_name="broker-z"), 0)


def test_what_is_no_queue_is_refused_wherever_one_is_asked_for(broker: Connection, lite: Lite) -> None:
    fill(broker)
    consumer = lite("orders")

    uses: list[Callable[[Any], object]] = [
        lambda wrong: consumer.seek(wrong, 0),
        consumer.seek_to_begin,
        consumer.seek_to_end,
        consumer.committed,
        lambda wrong: consumer.offset_for_timestamp(wrong, datetime.now(UTC)),
        lambda wrong: consumer.pause([queue_of(0), wrong]),
        lambda wrong: consumer.commit({queue_of(0): 5, wrong: 1}),
    ]
    for wrong in ("orders", 1, None, ("orders", "broker-a", 0)):
        for use in uses:
            with pytest.raises(ParameterInvalid, match=r"queue = .*; give a MessageQueue"):
                use(wrong)
    assert consumer.committed(queue_of(0)) in (None, 0)
    assert polled(consumer, 30) == numbers(0, 30)


def test_a_truth_is_no_offset(broker: Connection, lite: Lite) -> None:
    fill(broker)
    consumer = lite("orders")

    with pytest.raises(ParameterInvalid, match="offset = True: must be a whole number from the min offset"):
        consumer.seek(queue_of(0), True)
    with pytest.raises(ParameterInvalid, match="offset = True: must be a whole number, 0 or more"):
        consumer.commit({queue_of(0): True})


def test_a_seek_back_is_committed_and_outlives_a_restart(broker: Connection, lite: Lite) -> None:
    route = fill(broker)
    consumer = lite("orders")
    polled(consumer, 30)
    consumer.commit()
    assert committed(broker, route) == [30]

    consumer.seek(queue_of(0), 5)
    consumer.shutdown()

    assert committed(broker, route) == [5]
    assert polled(lite("orders"), 25) == numbers(5, 30)


def test_a_queue_that_is_paused_returns_nothing_until_it_is_resumed(broker: Connection, lite: Lite) -> None:
    """A paused queue returns nothing until it is resumed, not even pulled messages; other queues are not affected."""
    route = fill(broker, queues=2, count=50)
    consumer = lite("orders")
    first = bodies(consumer.poll(SECOND))

    consumer.pause([queue_of(0), queue_of(9)])
    append(broker, route, "0-50")
    of_first = sum(body.startswith("0-") for body in first)
    meanwhile = drained(consumer, 50 - (len(first) - of_first))
    consumer.resume([queue_of(0)])
    rest = drained(consumer, 51 - of_first)

    assert {body[0] for body in meanwhile} <= {"1"}
    received = first + meanwhile + rest
    for queue_id, past in ((0, 51), (1, 50)):
        assert [body for body in received if body[0] == f"{queue_id}"] == [f"{queue_id}-{n}" for n in range(past)]
