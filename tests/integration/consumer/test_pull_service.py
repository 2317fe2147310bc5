"""The pull service with a real broker: flow control, unreadable queues, and lost announcements."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.consumers.pull import PullRequest
from mqdb.broker.topics.topics import delete_topic
from mqdb.common.message import Message, MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.consumers.consumer_offsets import OwnedQueue
from mqdb.store.dispatch.unread import progress
from mqdb.store.engine import driver
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.consumer.queues import pull_service
from mqdb_client.consumer.queues.process_queue import FlowLimits, ProcessQueue
from mqdb_client.consumer.queues.pull_service import PullService
from mqdb_client.outage import Outage
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.fuzz import fuzz_random
from tests.fixtures.processes import wait_until
from tests.fixtures.queue_owner import Owner, held_connections

LIMITS = FlowLimits(messages=1_000, body_bytes=100 * 1024 * 1024, span=2_000)

Pulling = Callable[..., PullService]


@pytest.fixture
def pulling(engine: Engine) -> Iterator[Pulling]:
    """Starts a pull service without a consumer, on topic `orders` and on topics with selectors."""
    started: list[PullService] = []

    def start(*queues: ProcessQueue, expression: str = "*", **selectors: MessageFilter) -> PullService:
        service = PullService(
            "readers",
            connect=held_connections(engine),
            subscriptions={"orders": parse_tag_expression(expression), **selectors},
            batch_size=32,
            deliver=lambda _queue, _count: None,
            outage=Outage("broker-a"),
        )
        for queue in queues:
            service.add(queue)
        service.start()
        started.append(service)
        return service

    yield start
    for service in started:
        service.stop()


def queue_of(route: TopicRoute, queue_id: int = 0, *, offset: int = 0, limits: FlowLimits = LIMITS) -> ProcessQueue:
    owned = OwnedQueue(route.queue_keys[queue_id], epoch=1, next_offset=offset, segment=0)
    return ProcessQueue(MessageQueue(route.config.name, "broker-a", queue_id), owned, limits)


def consume(service: PullService, queue: ProcessQueue, count: int) -> None:
    queue.owner = owner = Owner()
    queue.finish(queue.take(count))
    if owner.progress:
        service.on_room()


def test_row_66_a_queue_is_pulled_up_to_its_limit_and_again_when_a_quarter_is_done(
    broker: Connection, pulling: Pulling
) -> None:
    """Checklist row 66: a queue is pulled up to its limit, and again once a quarter is consumed.

    The limit is about 1,000 messages and the last pull.
    """
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *("x" for _ in range(1_500)), queue_id=queue_id)
    dispatch_all(broker)
    blocked, fast = queue_of(route, 0), queue_of(route, 1)

    service = pulling(blocked, fast)
    wait_until(lambda: len(blocked) > 1_000)
    while fast.next_offset < 1_500:
        consume(service, fast, 100)

    assert len(blocked) == 1_024
    consume(service, blocked, 1_024 - 750)
    wait_until(lambda: len(blocked) > 1_000)


class Watched(ProcessQueue):
    """A process queue that counts how often a pull checks it and adds messages to it."""

    looks = puts = 0

    def pull_request(self) -> PullRequest:
        self.looks += 1
        return super().pull_request()

    @property
    def next_offset(self) -> int:
        self.looks += 1
        return super().next_offset

    def put(self, messages: list[ReceivedMessage], next_offset: int, segment: int) -> bool:
        self.puts += 1
        return super().put(messages, next_offset, segment)


def test_a_pull_looks_at_its_queue_once(broker: Connection, pulling: Pulling) -> None:
    route = topic(broker)
    append(broker, route, *("x" for _ in range(100)))
    dispatch_all(broker)
    owned = OwnedQueue(route.queue_keys[0], epoch=1, next_offset=0, segment=0)
    queue = Watched(MessageQueue("orders", "broker-a", 0), owned, LIMITS)

    service = pulling(queue)
    wait_until(lambda: len(queue) == 100)
    service.stop()

    assert queue.puts >= 4
    assert queue.looks == queue.puts


def test_bodies_in_hand_are_limited(broker: Connection, pulling: Pulling) -> None:
    route = topic(broker, queues=2)
    append(broker, route, *("x" * 1_000 for _ in range(200)))
    dispatch_all(broker)
    limits = FlowLimits(messages=1_000, body_bytes=50_000, span=2_000)
    full, other = queue_of(route, 0, limits=limits), queue_of(route, 1)

    service = pulling(full, other)
    wait_until(lambda: len(full) >= 64)
    append(broker, route, "x", queue_id=1)
    dispatch_all(broker)
    service.on_arrival(None)
    wait_until(lambda: len(other) == 1)

    assert len(full) == 64


def test_messages_are_found_without_any_announcement(broker: Connection, pulling: Pulling) -> None:
    route = topic(broker)
    queue = queue_of(route)
    pulling(queue)

    append(broker, route, "x")
    dispatch_all(broker)

    wait_until(lambda: len(queue) == 1, 5)


@pytest.mark.parametrize(("offset", "legal"), [(10**9, 3), (0, 2)], ids=["behind the end", "before the beginning"])
def test_row_68_an_offset_that_does_not_exist_is_reported_with_a_legal_one(
    broker: Connection, pulling: Pulling, offset: int, legal: int
) -> None:
    """Checklist row 68: an offset beyond the max is reported with the max, one below the min with the min.

    The queue is dropped, and its messages are discarded.
    """
    route = topic(broker)
    append(broker, route, "0", "1", "2")
    dispatch_all(broker)
    broker.execute(text("UPDATE mqdb.queue SET base_offset = 2 WHERE queue_key = :key"), {"key": route.queue_keys[0]})
    queue = queue_of(route, offset=offset)
    queue.owner = owner = Owner()

    pulling(queue)
    wait_until(lambda: owner.corrections)

    assert owner.corrections == [(queue, legal)]
    assert queue.is_dropped


def test_a_queue_with_a_missing_record_stands_still_and_the_others_go_on(
    broker: Connection, pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    route = topic(broker, queues=2)
    append(broker, route, "0", "1", queue_id=0)
    positions = append(broker, route, "0", "1", queue_id=1)
    dispatch_all(broker)
    broker.execute(text("DELETE FROM mqdb.commit_log WHERE log_pos = :pos"), {"pos": positions[1]})
    whole, broken = queue_of(route, 0), queue_of(route, 1)

    pulling(whole, broken)
    wait_until(lambda: len(whole) == 2)
    for number in range(3):
        append(broker, route, f"later {number}", queue_id=0)
        dispatch_all(broker)
        wait_until(lambda expected=number + 3: len(whole) == expected)  # type: ignore[misc]

    assert len(broken) == 0
    assert len([line for line in caplog.messages if "stands still for group" in line]) == 1


def test_queues_of_a_deleted_topic_are_left_alone(broker: Connection, pulling: Pulling) -> None:
    route = topic(broker)
    queue = queue_of(route)
    pulling(queue)
    append(broker, route, "x")
    dispatch_all(broker)
    wait_until(lambda: len(queue) == 1, 5)

    delete_topic(broker, "orders")
    other = topic(broker, "bills")
    append(broker, other, "y")
    dispatch_all(broker)

    assert queue.next_offset == 1


def test_pulls_go_on_after_their_connection_was_lost(
    broker: Connection, pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    route = topic(broker)
    append(broker, route, "0")
    dispatch_all(broker)
    queue = queue_of(route)
    pulling(queue)
    wait_until(lambda: len(queue) == 1)

    broker.execute(
        text(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
        )
    )
    append(broker, route, "1")
    dispatch_all(broker)
    wait_until(lambda: len(queue) == 2)

    assert caplog.text.count("lost the connection to the broker") == 1
    wait_until(lambda: "connected to the broker again" in caplog.text)


def test_a_queue_that_was_removed_is_not_pulled(broker: Connection, pulling: Pulling) -> None:
    route = topic(broker, queues=2)
    removed, kept = queue_of(route, 0), queue_of(route, 1)
    service = pulling(removed, kept)

    service.remove(removed)
    for queue_id in range(2):
        append(broker, route, "x", queue_id=queue_id)
    dispatch_all(broker)
    wait_until(lambda: len(kept) == 1)

    assert len(removed) == 0


def test_a_topic_whose_pull_is_refused_does_not_hold_up_the_others(
    broker: Connection, pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic whose pull is refused does not hold up other topics, although its pauses become longer and longer.

    New messages of other topics are pulled during these pauses.
    """
    caplog.set_level("INFO")
    orders, bills = topic(broker), topic(broker, "bills")
    [whole] = broker.scalars(text("SELECT pg_get_functiondef('mqdb.java_double(text)'::regprocedure)"))
    broker.execute(
        text("""CREATE OR REPLACE FUNCTION mqdb.java_double(string text) RETURNS double precision LANGUAGE plpgsql
                AS $$ BEGIN RAISE EXCEPTION 'no numbers today'; END $$""")
    )
    append(broker, bills, Message("bills", "bill", properties={"price": "5.5"}))
    dispatch_all(broker)
    good, refused = queue_of(orders), queue_of(bills)

    pulling(good, refused, bills=compile_selector("price > 1.5"))
    wait_until(lambda: "could not pull topic bills for group" in caplog.text)
    for number in range(1, 6):
        append(broker, orders, str(number))
        dispatch_all(broker)
        wait_until(lambda expected=number: len(good) == expected)  # type: ignore[misc]

    assert len(refused) == 0
    driver(broker).execute(whole)
    wait_until(lambda: len(refused) == 1)
    assert caplog.text.count("could not pull topic bills for group") == 1
    # Said when the pull has returned, which the queue does not wait for.
    wait_until(lambda: caplog.messages.count("pulling a topic again") == 1)
    assert "could not pull for group" not in caplog.text


def test_only_the_topic_that_is_the_reason_rests_if_several_are_pulled_together(
    broker: Connection, pulling: Pulling, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the topic that causes a refusal pauses, even if it is pulled together with others.

    Topics with the same selector are pulled in one statement.
    """
    routes = {name: topic(broker, name) for name in ("bills", "fees", "taxes")}
    broker.execute(
        text("""CREATE OR REPLACE FUNCTION mqdb.java_double(string text) RETURNS double precision LANGUAGE plpgsql
                AS $$ BEGIN IF string = '13' THEN RAISE EXCEPTION 'bad luck'; END IF; RETURN string; END $$""")
    )
    for name, route in routes.items():
        append(broker, route, Message(name, name, properties={"price": "13" if name == "fees" else "5"}))
    dispatch_all(broker)
    queues = {name: queue_of(route) for name, route in routes.items()}

    selectors = {name: compile_selector("price > 1.5") for name in routes}
    service = pulling(*queues.values(), **selectors)
    wait_until(lambda: len(queues["bills"]) == len(queues["taxes"]) == 1)
    append(broker, routes["taxes"], Message("taxes", "more", properties={"price": "6"}))
    dispatch_all(broker)
    service.on_arrival(routes["taxes"].queue_keys)
    wait_until(lambda: len(queues["taxes"]) == 2)

    assert len(queues["fees"]) == 0
    rested = [record.topic for record in caplog.records if "could not pull topic" in record.message]  # type: ignore[attr-defined]
    assert rested == ["fees"]


def test_a_queue_whose_topic_is_subscribed_to_again_is_pulled_without_news(
    broker: Connection, pulling: Pulling
) -> None:
    route = topic(broker)
    append(broker, route, "x")
    dispatch_all(broker)
    service, queue = pulling(), queue_of(route)
    subscriptions, service.subscriptions = service.subscriptions, {}

    service.add(queue)
    wait_until(lambda: service._swept is not None)
    service.subscriptions = subscriptions

    wait_until(lambda: len(queue) == 1)


# -- many queues ------------------------------------------------------------------------------------

TOPICS, QUEUES = 50, 2


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The number of the service's calls of each statement."""
    counts = dict.fromkeys(("progress", "unread", "pull"), 0)

    def count(name: str) -> None:
        ask = getattr(pull_service, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return ask(*arguments, **options)

        monkeypatch.setattr(pull_service, name, counting)

    for name in counts:
        count(name)
    return counts


def many_queues(broker: Connection, limits: FlowLimits = LIMITS) -> tuple[list[TopicRoute], list[ProcessQueue]]:
    routes = [topic(broker, f"topic_{number}", QUEUES) for number in range(TOPICS)]
    return routes, [queue_of(route, number, limits=limits) for route in routes for number in range(QUEUES)]


def filters_of(routes: list[TopicRoute]) -> dict[str, MessageFilter]:
    """Filter every third topic by tag and every third by a selector; all messages match."""
    kinds: list[MessageFilter] = [
        parse_tag_expression("*"),
        parse_tag_expression("TagA || TagB"),
        compile_selector("price IS NULL"),
    ]
    return {route.config.name: kinds[number % 3] for number, route in enumerate(routes)}


def test_many_idle_queues_cost_one_cheap_question(
    broker: Connection, pulling: Pulling, statements: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_service, "MIN_POLL_SECONDS", 0.01)
    monkeypatch.setattr(pull_service, "_SWEPT_PER_SECOND", 10**9)
    routes, queues = many_queues(broker)
    pulling(*queues, **filters_of(routes))
    wait_until(lambda: statements["progress"] >= 5)

    assert statements["unread"] <= 2
    assert statements["pull"] == 0

    append(broker, routes[6], "x", queue_id=1)
    dispatch_all(broker)
    wait_until(lambda: len(queues[6 * QUEUES + 1]) == 1)
    assert statements["pull"] == 1


@pytest.mark.parametrize("is_net", [False, True], ids=["announced", "lost"])
def test_no_message_waits_for_the_sweep_if_it_was_announced_and_none_is_lost_if_it_was_not(
    broker: Connection, pulling: Pulling, monkeypatch: pytest.MonkeyPatch, is_net: bool
) -> None:
    """Messages arrive at random in 100 queues with three kinds of filters, while queues are consumed, lost and gained.

    Either each announcement comes late, as keys or as `a:*`, and there is no sweep, or no announcement comes and sweeps
    run.
    """
    rng = fuzz_random()
    monkeypatch.setattr(pull_service, "MIN_POLL_SECONDS", 0.01 if is_net else 600.0)
    monkeypatch.setattr(pull_service, "MAX_POLL_SECONDS", 0.05 if is_net else 600.0)
    monkeypatch.setattr(pull_service, "_SWEPT_PER_SECOND", 10**9)
    routes, queues = many_queues(broker, FlowLimits(messages=3, body_bytes=10**6, span=100))
    ends = [0] * len(queues)
    service = pulling(*queues, **filters_of(routes))
    late: list[frozenset[int] | None] = []

    for number in range(40):
        chosen = rng.sample(range(len(queues)), rng.choice([1, 1, 3, 40]))
        for index in chosen:
            ends[index] += (count := rng.randint(1, 3))
            append(broker, routes[index // QUEUES], *["x"] * count, queue_id=index % QUEUES, tag="TagA")
        dispatch_all(broker)
        late.append(frozenset(queues[index].queue_key for index in chosen) if rng.random() < 0.8 else None)
        if not is_net and rng.random() < 0.7:
            service.on_arrival(late.pop(rng.randrange(len(late))))
        for index in rng.sample(range(len(queues)), 20):
            consume(service, queues[index], rng.randint(1, 4))
        if number % 10 == 9:  # rebalance moves it away and back
            index = rng.randrange(len(queues))
            service.remove(queues[index])
            queues[index].drop()
            queues[index] = queue_of(
                routes[index // QUEUES], index % QUEUES, offset=queues[index].next_offset, limits=queues[index].limits
            )
            service.add(queues[index])
    for announcement in [] if is_net else late:
        service.on_arrival(announcement)

    deadline = time.monotonic() + 30
    while behind := [index for index, queue in enumerate(queues) if queue.next_offset < ends[index]]:
        assert time.monotonic() < deadline, f"nothing has come to {[str(queues[index].queue) for index in behind]}"
        for queue in queues:
            consume(service, queue, 10)
        time.sleep(0.01)
    assert [queue.next_offset for queue in queues] == ends


def test_arrivals_of_an_open_lane_are_swept(broker: Connection) -> None:
    """Arrivals in an open lane are found by a sweep.

    A lane has its own checkpoints, so dispatch's checkpoint says nothing about the lane.
    """
    before = progress(broker)
    assert before == progress(broker)
    assert before.seq is not None

    broker.execute(text("INSERT INTO mqdb.dispatch_lane (service, queue_keys) VALUES ('lane 1', '{1}')"))

    assert progress(broker).seq is None
