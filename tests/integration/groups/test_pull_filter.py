"""Pull with a filter: how far it searches, its next offset, and what it reads, over one segment and over many."""

import random

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers import pull as pulls
from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon, SegmentBounds
from mqdb.broker.consumers.pull import DEFAULT_SCAN_LIMIT, PullStatus, explain_pull, pull
from mqdb.common.message import Message
from mqdb.errors import MessageMissing
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.engine import driver
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, bodies, dispatch_all, request, topic

RED = compile_selector("color = 'red'")
TAG_A = parse_tag_expression("A")
BOTH = pytest.mark.parametrize("wanted", [TAG_A, RED], ids=["tag", "selector"])


def send(connection: Connection, route: TopicRoute, *wishes: bool, size: int = 1, queue_id: int = 0) -> None:
    """Send one message for each wish, numbered in its body: wanted messages have tag A and the color red."""
    messages = [
        Message("orders", str(n).ljust(size), "A" if wish else "B", properties={"color": "red" if wish else "blue"})
        for n, wish in enumerate(wishes)
    ]
    append(connection, route, *messages, queue_id=queue_id)
    dispatch_all(connection)


def small_segments(connection: Connection, size: int) -> None:
    """Give the next segments this size, and move the log to the end of the existing ones."""
    connection.execute(text("UPDATE mqdb.broker SET segment_size = :size"), {"size": size})
    connection.execute(text("SELECT setval('mqdb.log_pos', (SELECT max(end_pos) - 1 FROM mqdb.segment))"))


@BOTH
def test_a_filter_passes_over_the_others(broker: Connection, wanted: MessageFilter) -> None:
    route = topic(broker)
    send(broker, route, *(n % 3 == 0 for n in range(60)))

    [result], _ = pull(broker, [request(route)], filter=wanted, limit=100)

    assert bodies(result.messages) == [str(n) for n in range(0, 60, 3)]
    assert (result.status, result.next_begin_offset) == (PullStatus.FOUND, 60)


@BOTH
def test_an_answer_that_is_full_goes_on_behind_its_last_message(broker: Connection, wanted: MessageFilter) -> None:
    route = topic(broker)
    send(broker, route, *(n % 2 == 1 for n in range(20)))

    [result], _ = pull(broker, [request(route)], filter=wanted, limit=4)

    assert (bodies(result.messages), result.next_begin_offset) == (["1", "3", "5", "7"], 8)


@BOTH
@pytest.mark.parametrize(("max_bytes", "found", "next_begin"), [(1, ["1"], 2), (1001, ["1", "3"], 4)])
def test_an_answer_of_enough_bytes_goes_on_behind_its_last_message(
    broker: Connection, wanted: MessageFilter, max_bytes: int, found: list[str], next_begin: int
) -> None:
    route = topic(broker)
    send(broker, route, *(n % 2 == 1 for n in range(20)), size=1000)

    [result], _ = pull(broker, [request(route)], filter=wanted, max_bytes=max_bytes)

    assert [body.strip() for body in bodies(result.messages)] == found
    assert result.next_begin_offset == next_begin


@BOTH
def test_without_a_match_an_answer_goes_on_behind_what_it_looked_at(broker: Connection, wanted: MessageFilter) -> None:
    route = topic(broker)
    send(broker, route, *[False] * 30, True)

    [first], _ = pull(broker, [request(route)], filter=wanted, limit=8, scan_limit=20)
    [second], _ = pull(broker, [request(route, first.next_begin_offset)], filter=wanted, limit=8, scan_limit=20)

    assert (first.status, first.next_begin_offset, first.messages) == (PullStatus.NO_MATCHED_MSG, 20, [])
    assert (second.status, second.next_begin_offset, bodies(second.messages)) == (PullStatus.FOUND, 31, ["30"])


def test_a_selector_looks_at_800_messages(broker: Connection) -> None:
    route = topic(broker)
    send(broker, route, *[False] * 900)

    [result], _ = pull(broker, [request(route)], filter=RED)

    assert (result.status, result.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, DEFAULT_SCAN_LIMIT)


def test_tags_are_compared_up_to_the_end_of_the_queue(broker: Connection) -> None:
    """Tags are compared up to the end of the queue: the index shows that none of them matches."""
    route = topic(broker)
    send(broker, route, *[False] * 2000)

    [result], _ = pull(broker, [request(route)], filter=TAG_A)

    assert (result.status, result.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, result.max_offset)


def test_queues_share_what_one_pull_may_compare(broker: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "TAG_SCAN_BUDGET", 1800)
    route = topic(broker, queues=2)
    for queue_id in (0, 1):
        send(broker, route, *[False] * 1000, queue_id=queue_id)

    results, _ = pull(broker, [request(route, 0, 0), request(route, 0, 1)], filter=TAG_A)

    assert [result.next_begin_offset for result in results] == [900, 900]


def test_no_queue_is_too_many_to_compare_a_few_of_its_tags(broker: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "TAG_SCAN_BUDGET", 1)
    route = topic(broker)
    send(broker, route, *[False] * 900)

    [result], _ = pull(broker, [request(route)], filter=TAG_A)

    assert result.next_begin_offset == DEFAULT_SCAN_LIMIT


@BOTH
def test_a_filter_changes_nothing_about_where_a_queue_ends(broker: Connection, wanted: MessageFilter) -> None:
    """A filter does not change the bounds of a queue.

    Min offset 2 and max offset 5, because retention has dropped 0 and 1.
    """
    route = topic(broker)
    send(broker, route, *[True] * 5)
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2 WHERE queue_key = :key"), {"key": route.queue_keys[0]})

    for offset, status, next_begin in (
        (0, PullStatus.OFFSET_ILLEGAL, 2),
        (5, PullStatus.NO_NEW_MSG, 5),
        (6, PullStatus.OFFSET_ILLEGAL, 5),
    ):
        [result], _ = pull(broker, [request(route, offset)], filter=wanted)

        assert (result.status, result.next_begin_offset, result.messages) == (status, next_begin, []), offset


@pytest.mark.parametrize("wanted", [parse_tag_expression("*"), parse_tag_expression(None)])
def test_a_filter_that_matches_all_is_none(broker: Connection, wanted: MessageFilter) -> None:
    route = topic(broker)
    send(broker, route, True, False)

    [result], _ = pull(broker, [request(route)], filter=wanted)

    assert bodies(result.messages) == ["0", "1"]


def test_a_filter_without_tags_matches_none(broker: Connection) -> None:
    route = topic(broker)
    send(broker, route, True, False)

    [result], _ = pull(broker, [request(route)], filter=parse_tag_expression(" "))

    assert (result.status, result.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 2)


# -- over segments ------------------------------------------------------------------------------


@BOTH
def test_what_was_passed_over_is_not_opened_again(broker: Connection, wanted: MessageFilter) -> None:
    """Segments that were passed are not opened again.

    A reader that finds nothing advances in segments, too, so the next pull skips the old ones.
    """
    route = topic(broker)
    small_segments(broker, 10)
    for _ in range(6):
        send(broker, route, *[False] * 10)
    [there], horizon = pull(broker, [request(route, 10**9)])
    offset, segment = 0, there.segment - 6
    seen = []

    while offset < 60:
        [result], horizon = pull(
            broker, [request(route, offset, segment=segment)], filter=wanted, limit=1, scan_limit=10, horizon=horizon
        )
        assert (result.status, result.next_begin_offset > offset) == (PullStatus.NO_MATCHED_MSG, True)
        offset, segment = result.next_begin_offset, result.segment
        seen.append(segment)

    assert seen == sorted(seen)
    assert seen[0] < seen[-2] <= seen[-1] == there.segment


@BOTH
def test_an_answer_that_its_window_ends_goes_on_there(broker: Connection, wanted: MessageFilter) -> None:
    """An answer that ends at its window continues there.

    Two segments of ten messages each are open; the scan limit would reach much further.
    """
    route = topic(broker)
    small_segments(broker, 10)
    for _ in range(6):
        send(broker, route, *[False] * 10)
    [first], horizon = pull(broker, [request(route)], filter=wanted, limit=1, scan_limit=5)

    [second], _ = pull(
        broker, [request(route, 5, segment=first.segment)], filter=wanted, scan_limit=1000, horizon=horizon
    )

    assert second.status is PullStatus.NO_MATCHED_MSG
    assert 5 < second.next_begin_offset < second.max_offset == 60


@BOTH
def test_a_record_outside_the_window_is_found_all_the_same(broker: Connection, wanted: MessageFilter) -> None:
    """A record outside the window is found nevertheless.

    A late committer may lower the lowest position of a segment unnoticed by a reader.
    """
    route = topic(broker)
    send(broker, route, False, True)
    too_high = Horizon(1, {1: SegmentBounds(10**9, 10**9 + 1), 2: SegmentBounds(10**9, 10**9 + 1)})

    [result], _ = pull(broker, [request(route, segment=1)], filter=wanted, horizon=too_high)

    assert bodies(result.messages) == ["1"]


@BOTH
def test_an_entry_without_its_record_is_an_error(broker: Connection, wanted: MessageFilter) -> None:
    """An entry without its record is an error, because the record might have matched the selector."""
    route = topic(broker)
    send(broker, route, True)
    broker.execute(text("DELETE FROM mqdb.commit_log"))

    with pytest.raises(MessageMissing):
        pull(broker, [request(route)], filter=wanted)


# -- what it costs ------------------------------------------------------------------------------


def test_bodies_of_messages_that_do_not_match_are_not_read(broker: Connection) -> None:
    route = topic(broker)
    noise = random.Random(1).randbytes(20_000)  # compression makes nothing of it
    messages = [Message("orders", noise, properties={"color": "blue"}) for _ in range(50)]
    append(broker, route, *messages, Message("orders", noise, properties={"color": "red"}))
    dispatch_all(broker)
    before = toast_blocks(broker)

    [result], _ = pull(broker, [request(route)], filter=RED)

    assert len(result.messages) == 1
    assert 0 < toast_blocks(broker) - before <= 30  # 20 KB are 10 chunks, each a look into index and table


def toast_blocks(connection: Connection) -> int:
    """The number of blocks read so far from the TOAST tables of the log."""
    connection.execute(text("SELECT pg_stat_force_next_flush()"))
    blocks = """SELECT sum(toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit)
                FROM pg_statio_all_tables WHERE relname LIKE 'commit\\_log\\_%'"""
    return int(connection.execute(text(blocks)).scalar_one())


def test_a_selector_is_planned_once(broker: Connection) -> None:
    route = topic(broker)
    send(broker, route, *[True] * 40)
    ask = [request(route, offset) for offset in range(20)]

    for each in ask:
        pull(broker, [each], filter=compile_selector("color = 'red' AND color <> 'green'"))

    planned = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%->>%'"
    assert driver(broker).execute(planned, prepare=False).fetchone() == (1,)


def test_a_selector_may_be_long(broker: Connection) -> None:
    route = topic(broker)
    send(broker, route, True, False)
    expression = " OR ".join(f"color = 'c{n}' AND size = {n}" for n in range(120)) + " OR color = 'red'"

    [result], _ = pull(broker, [request(route)], filter=compile_selector(expression))

    assert bodies(result.messages) == ["0"]


def test_the_plan_of_a_filtered_pull_can_be_seen(broker: Connection) -> None:
    route = topic(broker)
    send(broker, route, True, False)

    plan = "\n".join(explain_pull(broker, [request(route)], filter=RED))

    assert "queue_run_offset" in plan or "last_offset_idx" in plan
    assert "Execution Time" in plan


def test_a_wrong_cast_in_a_message_disturbs_nobody(broker: Connection) -> None:
    route = topic(broker)
    append(
        broker,
        route,
        *(Message("orders", a, properties={"a": a}) for a in ("7", "seven", "7.5", "99999999999999999999")),
    )
    dispatch_all(broker)

    [result], _ = pull(broker, [request(route)], filter=compile_selector("a > 5"), horizon=UNKNOWN_HORIZON)

    assert (bodies(result.messages), result.next_begin_offset) == (["7"], 4)
