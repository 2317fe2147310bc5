"""Filtered pulls up to the end of a queue return exactly the messages that match the filter.

The seed chooses tags, properties, the division of messages into segments and batches, and the limits of each pull.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON
from mqdb.broker.consumers.pull import PullStatus, pull
from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, request, topic
from tests.fixtures.variants import usually

SEEDS = 6
QUEUES = 3
TAGS = (None, "A", "Aa", "BB", "C", "rare")  # Aa and BB have one code


class Case(NamedTuple):
    """A filter, and its verdict on a message, computed in Python."""

    wanted: MessageFilter
    passes: Callable[[ReceivedMessage], bool]


def a_of(message: ReceivedMessage) -> int | None:
    a = message.properties.get("a", "")
    return int(a) if a.isdigit() else None


CASES = [
    Case(parse_tag_expression("A"), lambda m: m.tag == "A"),
    Case(parse_tag_expression("Aa || C"), lambda m: m.tag in ("Aa", "C")),
    Case(parse_tag_expression("rare"), lambda m: m.tag == "rare"),
    Case(parse_tag_expression("never"), lambda _: False),
    Case(compile_selector("a > 5"), lambda m: (a_of(m) or 0) > 5),
    Case(
        compile_selector("a > 5 AND color = 'red'"), lambda m: (a_of(m) or 0) > 5 and m.properties.get("color") == "red"
    ),
    Case(compile_selector("color IS NULL"), lambda m: "color" not in m.properties),
    Case(compile_selector("TAGS IN ('rare', 'C') OR a = 3"), lambda m: m.tag in ("rare", "C") or a_of(m) == 3),
    Case(compile_selector("color = 'never'"), lambda _: False),
]


def random_message(chance: random.Random, number: int) -> Message:
    properties = {}
    if chance.random() < 0.9:
        properties["a"] = chance.choice([str(chance.randrange(10)), "", "x", "\u0661"])
    if chance.random() < 0.8:
        properties["color"] = chance.choice(["red", "blue"])
    [tag] = chance.choices(TAGS, [3, 8, 4, 4, 4, 1])
    return Message("orders", str(number).ljust(chance.choice([10, 10, 500])), tag, properties=properties)


def fill(connection: Connection, route: TopicRoute, chance: random.Random) -> None:
    connection.execute(text("UPDATE mqdb.broker SET segment_size = :size"), {"size": chance.choice([20, 60, 100_000])})
    connection.execute(text("SELECT setval('mqdb.log_pos', (SELECT max(end_pos) - 10 FROM mqdb.segment))"))
    share = chance.choice([0.02, 0.5])  # of the appends that are dispatched at once: runs are long, or short
    for number in range(100):
        several = [random_message(chance, number * 10 + n) for n in range(chance.randrange(1, 11))]
        append(connection, route, *several, queue_id=chance.randrange(QUEUES))
        if chance.random() < share:
            dispatch_all(connection)
    dispatch_all(connection)


def walk(
    connection: Connection, route: TopicRoute, wanted: MessageFilter | None, chance: random.Random
) -> list[list[int]]:
    """Offsets of the messages that a reader with this filter receives from each queue, up to the end of all queues."""
    found: list[list[int]] = [[] for _ in range(QUEUES)]
    requests = [request(route, 0, queue_id) for queue_id in range(QUEUES)]
    horizon = UNKNOWN_HORIZON
    for _ in range(2_000):
        results, horizon = pull(
            connection,
            requests,
            filter=wanted,
            limit=chance.choice([1, 3, 32]),
            scan_limit=chance.choice([None, 1, 7, 50]),
            max_bytes=chance.choice([1, 700, 1_000_000]),
            horizon=horizon,
        )
        for result in results:
            is_further = result.next_begin_offset > result.request.offset
            assert is_further is (result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG))
            assert bool(result.messages) is (result.status is PullStatus.FOUND)
            mine = [m for m in result.messages if wanted is None or wanted.matches(m.tag)]
            found[result.request.queue.queue_id] += [m.queue_offset for m in mine]
        requests = [
            request(route, each.next_begin_offset, each.request.queue.queue_id, each.segment) for each in results
        ]
        if all(each.status is PullStatus.NO_NEW_MSG for each in results):
            return found
        if chance.random() < 0.1:  # a new connection knows nothing
            horizon = UNKNOWN_HORIZON
    raise AssertionError("there is always more")


@pytest.mark.parametrize("seed", usually(*range(2), of=range(SEEDS)))
def test_a_filtered_walk_finds_what_matches_and_nothing_else(broker: Connection, seed: int) -> None:
    chance = random.Random(seed)
    route = topic(broker, queues=QUEUES)
    fill(broker, route, chance)
    requests = [request(route, 0, queue_id) for queue_id in range(QUEUES)]
    everything = [result.messages for result in pull(broker, requests, limit=10_000)[0]]

    for case in CASES:
        expected = [[m.queue_offset for m in messages if case.passes(m)] for messages in everything]
        assert walk(broker, route, case.wanted, chance) == expected, f"seed {seed}: {case.wanted.canonical_text}"


@pytest.mark.parametrize("seed", usually(0, of=range(SEEDS)))
def test_a_walk_without_a_filter_finds_everything(broker: Connection, seed: int) -> None:
    chance = random.Random(seed)
    route = topic(broker, queues=QUEUES)
    fill(broker, route, chance)

    found = walk(broker, route, None, chance)

    assert all(offsets == list(range(len(offsets))) for offsets in found)
    assert sum(map(len, found)) > 100
