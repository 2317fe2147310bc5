"""Pull: RocketMQ's verdicts on an offset, tags, limits, and several queues in one answer."""

from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon, SegmentBounds
from mqdb.broker.consumers.pull import PullStatus, pull
from mqdb.broker.topics import topics as admin
from mqdb.errors import MessageMissing
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression
from tests.fixtures.broker import append, bodies, dispatch_all, request, topic


def test_messages_come_in_order_and_without_gaps(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, *(str(n) for n in range(100)))
    dispatch_all(broker)

    read: list[str] = []
    result = pull(broker, [request(route)], limit=30)[0][0]
    while result.status is PullStatus.FOUND:
        read += bodies(result.messages)
        result = pull(broker, [request(route, result.next_begin_offset, segment=result.segment)], limit=30)[0][0]

    assert read == [str(n) for n in range(100)]
    assert (result.status, result.next_begin_offset) == (PullStatus.NO_NEW_MSG, 100)


def test_what_is_not_dispatched_is_not_there_yet(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, "later")

    [result], _ = pull(broker, [request(route)])

    assert (result.status, result.max_offset) == (PullStatus.NO_NEW_MSG, 0)


def test_the_verdict_on_an_offset(broker: Connection) -> None:
    """The queue has min offset 2 and max offset 5: retention has dropped 0 and 1."""
    route = topic(broker)
    append(broker, route, *"abcde")
    dispatch_all(broker)
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2 WHERE queue_key = :key"), {"key": route.queue_keys[0]})

    for offset, status, next_begin in (
        (0, PullStatus.OFFSET_ILLEGAL, 2),
        (2, PullStatus.FOUND, 5),
        (5, PullStatus.NO_NEW_MSG, 5),
        (6, PullStatus.OFFSET_ILLEGAL, 5),
        (10**9, PullStatus.OFFSET_ILLEGAL, 5),
    ):
        [result], _ = pull(broker, [request(route, offset)])

        assert (result.status, result.next_begin_offset) == (status, next_begin), offset
        assert (result.min_offset, result.max_offset) == (2, 5)
        assert bodies(result.messages) == (["c", "d", "e"] if status is PullStatus.FOUND else [])


def test_one_answer_serves_several_queues(broker: Connection) -> None:
    route = topic(broker, queues=3)
    append(broker, route, "a", "b", queue_id=0)
    append(broker, route, "c", queue_id=2)
    dispatch_all(broker)

    results, _ = pull(broker, [request(route, 0, 0), request(route, 0, 1), request(route, 0, 2)])

    assert [bodies(result.messages) for result in results] == [["a", "b"], [], ["c"]]
    assert [message.queue.queue_id for result in results for message in result.messages] == [0, 0, 2]


def test_a_tag_filter_passes_over_the_others(broker: Connection) -> None:
    route = topic(broker)
    for n in range(60):
        append(broker, route, str(n), tag="TagA" if n % 3 == 0 else "TagB" if n % 3 == 1 else "TagC")
    dispatch_all(broker)

    [result], _ = pull(broker, [request(route)], filter=parse_tag_expression("TagA || TAGB"), limit=100)

    assert bodies(result.messages) == [str(n) for n in range(0, 60, 3)]
    assert result.next_begin_offset == 60


def test_an_untagged_message_matches_no_tag(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, "untagged")
    dispatch_all(broker)

    [result], _ = pull(broker, [request(route)], filter=parse_tag_expression("A"))

    assert (result.status, result.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 1)


def test_a_filtered_pull_looks_at_a_bounded_number_of_entries(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, *("no" for _ in range(900)), tag="B")
    append(broker, route, "yes", tag="A")
    dispatch_all(broker)
    wanted = parse_tag_expression("A")

    [first], _ = pull(broker, [request(route)], filter=wanted, scan_limit=800)
    [second], _ = pull(broker, [request(route, first.next_begin_offset)], filter=wanted, scan_limit=800)

    assert (first.status, first.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 800)
    assert (bodies(second.messages), second.next_begin_offset) == (["yes"], 901)


def test_a_filtered_answer_that_is_full_goes_on_behind_its_last_message(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, *(str(n) for n in range(10)), tag="A")
    dispatch_all(broker)

    [result], _ = pull(broker, [request(route)], filter=parse_tag_expression("A"), limit=4)

    assert (bodies(result.messages), result.next_begin_offset) == (["0", "1", "2", "3"], 4)


def test_an_answer_ends_at_the_byte_limit_but_never_empty(broker: Connection) -> None:
    route = topic(broker)
    append(broker, route, "x" * 1000, "y" * 10, "z" * 1000, "u")
    dispatch_all(broker)

    [huge], _ = pull(broker, [request(route)], max_bytes=10)
    [two], _ = pull(broker, [request(route)], max_bytes=1005)

    assert (len(huge.messages), huge.next_begin_offset) == (1, 1)
    assert (len(two.messages), two.next_begin_offset) == (2, 2)


def test_the_horizon_of_an_answer_serves_the_next(broker: Connection) -> None:
    """The horizon of an answer can be used for the next pull.

    Over several segments, such hints prune partitions but never hide a message.
    """
    broker.execute(text("UPDATE mqdb.broker SET segment_size = 50"))
    broker.execute(text("SELECT setval('mqdb.log_pos', (SELECT max(end_pos) - 20 FROM mqdb.segment))"))
    route = topic(broker)
    read: list[str] = []
    found, horizon = pull(broker, [request(route)])
    position = found[0]
    for start in range(0, 200, 20):
        append(broker, route, *(str(n) for n in range(start, start + 20)))
        dispatch_all(broker)
        asked = request(route, position.next_begin_offset, segment=position.segment)
        [position], horizon = pull(broker, [asked], limit=100, horizon=horizon)
        read += bodies(position.messages)

    assert read == [str(n) for n in range(200)]
    assert position.segment > 3
    assert horizon.newest_segment == position.segment


def test_a_record_outside_the_window_is_found_all_the_same(broker: Connection) -> None:
    """A record outside the window is found nevertheless.

    A late committer may lower the lowest position of a segment unnoticed by a reader.
    """
    route = topic(broker)
    append(broker, route, "first")
    dispatch_all(broker)
    too_high = Horizon(1, {1: SegmentBounds(10**9, 10**9 + 1), 2: SegmentBounds(10**9, 10**9 + 1)})

    [result], _ = pull(broker, [request(route, segment=1)], horizon=too_high)

    assert bodies(result.messages) == ["first"]


@pytest.mark.parametrize(
    "wanted", [None, parse_tag_expression("A"), compile_selector("TAGS = 'A'")], ids=["all", "tag", "selector"]
)
def test_a_sparse_queue_is_read_across_many_segments(broker: Connection, wanted: MessageFilter | None) -> None:
    """A sparse queue is read across many segments: its next message lies far beyond the window of the last one.

    A pull with a filter must not treat this gap as the absence of matches.
    """
    broker.execute(text("UPDATE mqdb.broker SET segment_size = 10"))
    broker.execute(text("SELECT setval('mqdb.log_pos', (SELECT max(end_pos) - 5 FROM mqdb.segment))"))
    sparse, busy = topic(broker), topic(broker, "busy")
    read: list[str] = []
    asked, horizon = request(sparse), UNKNOWN_HORIZON
    for turn in range(3):
        append(broker, sparse, str(turn), tag="A")
        for _ in range(6):
            append(broker, busy, *"0123456789")
            dispatch_all(broker)
        [result], horizon = pull(broker, [asked], filter=wanted, horizon=horizon)
        read += bodies(result.messages)
        asked = request(sparse, result.next_begin_offset, segment=result.segment)

    assert read == ["0", "1", "2"]
    assert asked.segment > 10


def test_an_entry_without_its_record_is_an_error(broker: Connection) -> None:
    route = topic(broker)
    [position] = append(broker, route, "gone")
    dispatch_all(broker)
    broker.execute(text("DELETE FROM mqdb.commit_log"))

    with pytest.raises(MessageMissing) as missing:
        pull(broker, [request(route)])

    assert (missing.value.queue_offset, missing.value.log_pos) == (0, position)


def test_queues_of_a_deleted_topic_are_left_out(broker: Connection) -> None:
    route, other = topic(broker), topic(broker, "others")
    append(broker, other, "still here")
    dispatch_all(broker)
    admin.delete_topic(broker, "orders")

    results, _ = pull(broker, [request(route), request(other)])

    assert [bodies(result.messages) for result in results] == [["still here"]]


def test_a_queue_of_another_history_is_left_out(broker: Connection) -> None:
    route = topic(broker, queues=2)
    append(broker, route, "x", queue_id=0)
    append(broker, route, "y", queue_id=1)
    dispatch_all(broker)
    here = replace(request(route), history=route.history)
    elsewhere = replace(request(route, queue_id=1), history=route.history + 1)

    [found], _ = pull(broker, [here, elsewhere])

    assert bodies(found.messages) == ["x"]


def test_a_horizon_of_another_history_hides_nothing(broker: Connection) -> None:
    """A horizon of another history hides nothing, although the log of that history had reached a later segment."""
    route = topic(broker)
    append(broker, route, *map(str, range(30)))
    dispatch_all(broker)
    elsewhere = Horizon(newest_segment=3, history=route.history + 1)

    [found], horizon = pull(broker, [replace(request(route, 20), history=route.history)], horizon=elsewhere)

    assert (found.status, found.max_offset, len(found.messages)) == (PullStatus.FOUND, 30, 10)
    assert horizon.history == route.history
