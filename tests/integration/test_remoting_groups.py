"""Groups of RocketMQ's clients: who owns which queue, how far a group has come, and how queues change hands."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers import groups, offset_reset
from mqdb.broker.consumers.offset_reset import Boundary
from mqdb.broker.consumers.offsets import take_queues_at
from mqdb.rebalance import allocate_averagely
from mqdb.remoting import members
from mqdb.remoting.codes import RequestCode
from mqdb.remoting.consuming import ConsumingTimes
from mqdb.remoting.front import Front
from mqdb.remoting.hand_over import HandOverTimes
from mqdb.remoting.pulls import PullTimes
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.engine import create_engine
from mqdb.store.topics.topics import TopicRoute, find_topic
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.history import Past
from tests.fixtures.orderly import OrderlyMember, Script
from tests.fixtures.postgres import Database as PastDatabase
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import QUICK, Fronts, Pulled, RemotingClient, consumer, pulled

A, B = "1.2.3.4@1", "1.2.3.4@2"
NO_PERMISSION, NO_NEW, NO_MATCHED, MOVED, NONE = 16, 19, 20, 21, 22


def filled(broker: Connection, messages: int = 10, queues: int = 1) -> TopicRoute:
    """`orders` with so many messages in each queue."""
    route = topic(broker, queues=queues)
    for queue_id in range(queues):
        append(broker, route, *(f"{queue_id}-{number}" for number in range(messages)), queue_id=queue_id)
    dispatch_all(broker)
    return route


def joined(fronts: Fronts, client_id: str = A, **options: str) -> RemotingClient:
    client = fronts.connect()
    assert client.heartbeat(client_id, consumer(**{"orders": "*"} | options)).code == 0
    return client


def stored(broker: Connection, route: TopicRoute, queue_id: int = 0, group: str = "readers") -> int | None:
    key = route.queue_keys[queue_id]
    return committed_offsets(broker, group, [key]).get(key)


def owner(broker: Connection, route: TopicRoute, queue_id: int = 0) -> str | None:
    statement = text("SELECT owner FROM mqdb.consumer_offset WHERE queue_key = :key")
    return broker.execute(statement, {"key": route.queue_keys[queue_id]}).scalar()


# -- 14: to ask is to take -----------------------------------------------------------------------


def test_a_member_that_asks_for_the_offset_takes_the_queue(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)

    assert joined(fronts).query_offset("readers", "orders") == 0

    assert owner(broker, route) == A


def test_a_group_begins_where_its_consumer_says(broker: Connection, fronts: Fronts) -> None:
    filled(broker)

    assert joined(fronts, where="CONSUME_FROM_LAST_OFFSET").query_offset("readers", "orders") == 10


def test_who_is_no_member_only_reads_the_offset(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    stranger = fronts.connect()
    before = stranger.take("readers", "orders")
    joined(fronts).query_offset("readers", "orders")

    assert before == (NONE, None)
    assert stranger.query_offset("readers", "orders") == 0
    assert owner(broker, route) == A


def test_a_queue_that_another_member_has_is_waited_for_by_the_pulls(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    fronts.start(QUICK_BUT_PATIENT)
    client, other = joined(fronts), joined(fronts, B)
    client.query_offset("readers", "orders")
    held = client.begin_pull("readers", "orders", 10, hold_ms=20_000)

    offset = other.query_offset("readers", "orders")
    waiting = other.begin_pull("readers", "orders", 0, hold_ms=20_000)
    client.commit("readers", "orders", 4)
    client.leave(A, "readers")
    told = pulled(waiting.result(10))
    if told.code == NO_NEW:
        told = other.pull("readers", "orders", 0)

    assert offset == 0
    assert (told.code, told.next_offset) == (NO_MATCHED, 4)  # forward without the stand-still of a 21
    assert other.pull("readers", "orders", 4).bodies[0] == "0-4"
    assert owner(broker, route) == B
    assert not held.done() or pulled(held.result()).bodies == []


QUICK_BUT_PATIENT = ConsumingTimes(commit=60, pulls=PullTimes(owner=20), hand_over=QUICK.hand_over)


def test_a_client_without_its_own_choice_of_a_start_reads_from_its_first_pull_on(
    broker: Connection, fronts: Fronts
) -> None:
    """What a lite pull consumer says of it is not what its user wants, and a time is not sent at all."""
    for number, options in enumerate(({"type": "CONSUME_ACTIVELY"}, {"where": "CONSUME_FROM_TIMESTAMP"})):
        group = f"group-{number}"
        if number == 0:
            route = filled(broker, queues=2)
        client = fronts.connect()
        client.heartbeat(f"1.2.3.4@{number}", consumer(group, orders="*", **options))

        assert client.take(group, "orders") == (NONE, None)
        assert client.pull(group, "orders", 7).bodies == ["0-7", "0-8", "0-9"]
        assert client.query_offset(group, "orders") == 7
        assert stored(broker, route, 1, group) is None


def test_queues_are_taken_where_a_member_says(broker: Connection) -> None:
    route = filled(broker, queues=2)
    broker.execute(text("SELECT mqdb.make_group('readers')"))

    [owned] = take_queues_at(broker, "readers", A, {route.queue_keys[0]: 3, 999_999: 1})
    [again] = take_queues_at(broker, "readers", A, {route.queue_keys[0]: 8})

    assert (owned.next_offset, again.next_offset) == (3, 3)
    assert again.epoch > owned.epoch
    assert stored(broker, route, 1) is None


def test_ends_and_times_of_queues_are_answered(broker: Connection, fronts: Fronts) -> None:
    filled(broker, 3)
    client = fronts.connect()
    fields = {"topic": "orders", "queueId": 0}

    def offset(code: int, **more: object) -> str:
        return client.request(code, fields | more).fields["offset"]

    assert offset(RequestCode.GET_MAX_OFFSET) == "3"
    assert offset(RequestCode.GET_MIN_OFFSET) == "0"
    assert offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0) == "0"
    assert offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=4_000_000_000_000) == "3"
    assert client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields | {"timestamp": 2**62}).code != 0
    assert client.request(RequestCode.GET_MAX_OFFSET, {"topic": "absent", "queueId": 0}).code == 17


# -- commits -------------------------------------------------------------------------------------


def test_commits_are_written_soon_by_15_and_by_pulls(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")

    client.commit("readers", "orders", 3)
    wait_until(lambda: stored(broker, route) == 3)
    client.pull("readers", "orders", 8, commit=5)
    wait_until(lambda: stored(broker, route) == 5)


def test_a_commit_does_not_go_back_but_for_a_client_that_seeks(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    client, seeking = joined(fronts), fronts.connect()
    seeking.heartbeat(B, consumer("seekers", type="CONSUME_ACTIVELY", orders="*"))
    client.query_offset("readers", "orders")
    seeking.pull("seekers", "orders", 9)

    for group, each in (("readers", client), ("seekers", seeking)):
        each.commit(group, "orders", 8)
        wait_until(lambda group=group: stored(broker, route, 0, group) == 8)  # type: ignore[misc]
        each.commit(group, "orders", 2)

    wait_until(lambda: stored(broker, route, 0, "seekers") == 2)
    assert stored(broker, route) == 8


def test_what_was_committed_before_the_end_counts(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    front = fronts.start(QUICK_BUT_PATIENT)
    leaving, staying = joined(fronts), joined(fronts, B)
    leaving.query_offset("readers", "orders", 0)
    staying.query_offset("readers", "orders", 1)
    leaving.commit("readers", "orders", 3, 0)
    staying.commit("readers", "orders", 4, 1)
    staying.request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})

    leaving.leave(A, "readers")
    assert stored(broker, route, 0) == 3
    front.stop()

    assert stored(broker, route, 1) == 4


def test_a_commit_that_comes_behind_the_end_counts(broker: Connection, fronts: Fronts) -> None:
    """As those of Java's clients do, which send the two in two threads."""
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")

    leaving = client.begin(RequestCode.UNREGISTER_CLIENT, {"clientID": A, "consumerGroup": "readers"})
    client.commit("readers", "orders", 8)
    leaving.result(10)

    assert stored(broker, route) == 8


def test_a_reader_without_a_subscription_commits_what_no_member_has(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = fronts.connect()
    client.heartbeat(A, consumer(type="CONSUME_ACTIVELY"))

    client.pull("readers", "orders", 2, expression=("TAG", "*"))
    client.commit("readers", "orders", 6)
    wait_until(lambda: stored(broker, route) == 6)
    client.commit("readers", "orders", 5)
    wait_until(lambda: stored(broker, route) == 5)

    assert owner(broker, route) is None
    assert client.members("readers") == []


def test_what_was_committed_is_answered_at_once(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    fronts.start(QUICK_BUT_PATIENT)
    client, reading = joined(fronts), fronts.connect()
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 3)
    client.request(RequestCode.HEART_BEAT, body={"clientID": A})  # in turn
    reading.commit("others", "orders", 4)
    reading.request(RequestCode.HEART_BEAT, body={"clientID": B})

    assert reading.query_offset("readers", "orders") == 3
    assert reading.query_offset("others", "orders") == 4


def test_who_broadcasts_owns_nothing(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    clients = [joined(fronts, A, model="BROADCASTING") for _ in range(2)]

    assert [len(each.pull("readers", "orders", 0).bodies) for each in clients] == [10, 10]
    assert owner(broker, route) is None
    assert clients[0].members("readers") == [A]


# -- lost, reset, restarted -----------------------------------------------------------------------


def test_a_reset_is_obeyed_by_the_next_pull_and_by_one_that_waits(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 10)
    wait_until(lambda: stored(broker, route) == 10)
    held = client.begin_pull("readers", "orders", 10, hold_ms=20_000)

    offset_reset.reset_offsets(broker, "readers", "orders", Boundary.EARLIEST)
    moved = pulled(held.result(10))
    client.commit("readers", "orders", 10)  # from before it has heard
    client.request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})

    assert (moved.code, moved.next_offset) == (MOVED, 0)
    assert len(client.pull("readers", "orders", 0).bodies) == 10
    assert stored(broker, route) == 0
    client.commit("readers", "orders", 10)
    wait_until(lambda: stored(broker, route) == 10)


def test_a_group_that_is_switched_off_is_refused_until_it_is_switched_on(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")

    groups.update_group(broker, "readers", consume_enable=False)
    wait_for_pull(client, 0, lambda each: each.code == NO_PERMISSION)
    groups.update_group(broker, "readers", consume_enable=True)

    assert len(wait_for_pull(client, 0, lambda each: each.code == 0).bodies) == 10


def test_a_commit_of_a_queue_that_was_taken_away_is_refused(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")
    update = "UPDATE mqdb.consumer_offset SET owner = NULL, epoch = epoch + 5, next_offset = 2"
    broker.execute(text(update))

    client.commit("readers", "orders", 9)
    moved = wait_for_pull(client, 9, lambda each: each.code == MOVED)

    assert (stored(broker, route), moved.next_offset) == (2, 2)
    assert owner(broker, route) == A


def wait_for_pull(client: RemotingClient, offset: int, wanted: Callable[[Pulled], bool]) -> Pulled:
    found: list[Pulled] = []

    def is_there() -> bool:
        found.append(client.pull("readers", "orders", offset))
        return wanted(found[-1])

    wait_until(is_there)
    return found[-1]


def test_a_client_goes_on_where_it_is_after_a_restart_of_the_front(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    front = fronts.start()
    client = joined(fronts)
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 3)
    wait_until(lambda: stored(broker, route) == 3)
    front.stop()

    fronts.start(port=front.address.port)
    again = fronts.connect(front)
    pulling = again.begin_pull("readers", "orders", 7)  # before it says who it is
    again.heartbeat(A, consumer(orders="*"))

    assert pulled(pulling.result(10)).bodies == ["0-7", "0-8", "0-9"]
    again.commit("readers", "orders", 8)
    wait_until(lambda: stored(broker, route) == 8)


def test_a_client_that_comes_on_another_connection_goes_on_before_its_next_heartbeat(
    broker: Connection, fronts: Fronts
) -> None:
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")
    client.close()
    wait_until(lambda: pulled_by_stranger(fronts) == ["0-3"])

    again = fronts.connect()
    again.commit("readers", "orders", 7)

    wait_until(lambda: stored(broker, route) == 7)
    assert owner(broker, route) == A


def pulled_by_stranger(fronts: Fronts) -> list[str]:
    return fronts.connect().pull("readers", "orders", 3, limit=1).bodies


def test_a_restart_of_the_server_leaves_a_client_where_it_is(past: Past) -> None:
    fronts = Fronts(PastDatabase(past.dsn))
    try:
        sent_to(past, "a", "b", "c", "d")
        client = joined(fronts)
        client.query_offset("readers", "orders")
        assert client.pull("readers", "orders", 0, commit=2).bodies == ["a", "b", "c", "d"]
        client.query_offset("readers", "orders")  # writes

        past.restart()
        sent_to(past, "e")

        assert wait_for_pull(client, 4, lambda each: each.code in (0, MOVED)).bodies == ["e"]
    finally:
        fronts.close()


def test_a_database_that_has_gone_back_sends_a_client_back(past: Past) -> None:
    fronts = Fronts(PastDatabase(past.dsn))
    try:
        sent_to(past, "a", "b")
        client = joined(fronts)
        client.query_offset("readers", "orders")
        client.commit("readers", "orders", 1)
        client.request(RequestCode.HEART_BEAT, body={"clientID": A, "consumerDataSet": [consumer(orders="*")]})
        client.query_offset("readers", "orders")
        past.save("two")
        sent_to(past, "c", "d")
        wait_for_pull(client, 2, lambda each: each.bodies == ["c", "d"])

        past.return_to("two")
        sent_to(past, "e", "f", "g")
        moved = wait_for_pull(client, 4, lambda each: each.code in (0, MOVED))

        assert (moved.code, moved.next_offset) == (MOVED, 1)
        assert client.pull("readers", "orders", 1).bodies == ["b", "e", "f", "g"]
    finally:
        fronts.close()


def sent_to(past: Past, *bodies: str) -> None:
    engine = create_engine(past.dsn)
    with engine.connect() as connection:
        route = find_topic(connection, "orders")
        assert route is not None
        append(connection, route, *bodies)
        dispatch_all(connection)
    engine.dispose()


def test_a_client_that_goes_without_a_word_keeps_its_queues_for_a_while(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "GRACE_SECONDS", 0.5)
    route = filled(broker)
    client, other = joined(fronts), joined(fronts, B)
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 6)
    client.begin_pull("readers", "orders", 10, hold_ms=20_000)
    other.request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})

    client.close()

    assert owner(broker, route) == A
    wait_until(lambda: other.pull("readers", "orders", 6).bodies)
    assert (owner(broker, route), stored(broker, route)) == (B, 6)


# -- hand-over ------------------------------------------------------------------------------------


def test_a_queue_that_is_pulled_no_more_is_given_back(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    client = joined(fronts)
    for queue_id in range(2):
        client.query_offset("readers", "orders", queue_id)
        client.begin_pull("readers", "orders", 10, queue_id, hold_ms=20_000)
    client.commit("readers", "orders", 5, 1)

    joined(fronts, B)  # queue 0 stays the share of A

    wait_until(lambda: owner(broker, route, 1) is None)
    assert (owner(broker, route, 0), stored(broker, route, 1)) == (A, 5)


def test_a_queue_that_is_pulled_again_is_kept(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    client = joined(fronts)
    for queue_id in range(2):
        client.query_offset("readers", "orders", queue_id)
    joined(fronts, B)

    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        client.pull("readers", "orders", 10, 1, hold_ms=1_000)

    assert owner(broker, route, 1) == A


def test_a_share_that_another_client_asks_for_is_given_to_it_if_it_is_not_pulled(
    broker: Connection, fronts: Fronts
) -> None:
    """Clients with another strategy than averages."""
    route = filled(broker, queues=2)
    client, other = joined(fronts), joined(fronts, B)
    client.query_offset("readers", "orders", 0)

    wait_until(lambda: other.pull("readers", "orders", 0).bodies)

    assert owner(broker, route, 0) == B


def test_a_queue_that_is_committed_and_no_share_is_given_back_soon(broker: Connection, fronts: Fronts) -> None:
    times = ConsumingTimes(pulls=QUICK.pulls, hand_over=HandOverTimes(20, 20, 0.1))
    fronts.start(times)
    route = filled(broker, queues=2)
    client = joined(fronts)
    held = []
    for queue_id in range(2):
        client.query_offset("readers", "orders", queue_id)
        held.append(client.begin_pull("readers", "orders", 10, queue_id, hold_ms=20_000))
    joined(fronts, B)

    def is_given_back() -> bool:
        for queue_id in range(2):
            client.commit("readers", "orders", 10, queue_id)  # counts from when the front has heard of the change
        return owner(broker, route, 1) is None

    wait_until(is_given_back)
    assert (owner(broker, route, 0), stored(broker, route, 1)) == (A, 10)
    assert not held[0].done()


class JavaMember:
    """Does what RocketMQ's push consumers do: heartbeat, rebalance by averages, a pull for each queue, commits."""

    def __init__(self, fronts: Fronts, client_id: str, queues: int, front: Front | None = None) -> None:
        self.client_id, self._queues = client_id, queues
        self.bodies: list[str] = []
        self._client = fronts.connect(front)
        self._held: dict[int, int] = {}
        self._stopping = False
        self._client.heartbeat(client_id, consumer(orders="*"))
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._events.put(self._rebalance)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def assignment(self) -> set[int]:
        return set(self._held)

    def _listen(self) -> None:
        while not self._stopping:
            try:
                if self._client.asked.get(timeout=0.2).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                    self._events.put(self._rebalance)
            except queue.Empty:
                self._events.put(self._take)

    def _run(self) -> None:
        while not self._stopping:
            self._events.get()()
        for queue_id, offset in self._held.items():
            self._client.commit("readers", "orders", offset, queue_id)
        self._client.leave(self.client_id, "readers")

    def _rebalance(self) -> None:
        share = self._share()
        for queue_id in self._held.keys() - share:
            self._client.commit("readers", "orders", self._held.pop(queue_id), queue_id)
        self._take()

    def _share(self) -> set[int]:
        ids = self._client.members("readers")
        return set(allocate_averagely("readers", self.client_id, range(self._queues), ids))

    def _take(self) -> None:
        for queue_id in self._share() - self._held.keys():
            offset = self._client.query_offset("readers", "orders", queue_id)
            if offset is not None:
                self._held[queue_id] = offset
                self._pull(queue_id)

    def _pull(self, queue_id: int) -> None:
        offset = self._held[queue_id]
        future = self._client.begin_pull("readers", "orders", offset, queue_id, hold_ms=15_000, commit=offset)
        future.add_done_callback(lambda done: self._events.put(lambda: self._found(queue_id, offset, done)))

    def _found(self, queue_id: int, offset: int, done) -> None:  # type: ignore[no-untyped-def]
        found = pulled(done.result())
        if self._held.get(queue_id) != offset:  # dropped
            return
        self.bodies += found.bodies
        self._held[queue_id] = found.next_offset
        self._pull(queue_id)

    def stop(self) -> None:
        self._stopping = True
        self._events.put(lambda: None)
        self._thread.join()
        self._listener.join()
        self._client.close()


@pytest.fixture
def java(fronts: Fronts) -> Iterator[Callable[..., JavaMember]]:
    """Starts members that behave as Java's, by default on the first front."""
    started: list[JavaMember] = []

    def start(client_id: str, queues: int, front: Front | None = None) -> JavaMember:
        started.append(JavaMember(fronts, client_id, queues, front))
        return started[-1]

    yield start
    for each in started:
        if not each._stopping:
            each.stop()


@pytest.mark.parametrize("count", [1, 2])
def test_two_members_on_one_front_or_two_share_the_queues_and_hand_them_over(
    broker: Connection, fronts: Fronts, java: Callable[..., JavaMember], count: int
) -> None:
    served = [fronts.start() for _ in range(count)]
    route = filled(broker, 20, queues=4)
    first = java(A, 4)
    wait_until(lambda: len(first.bodies) == 80)
    second = java(B, 4, served[-1])
    wait_until(lambda: (first.assignment, second.assignment) == ({0, 1}, {2, 3}))

    for queue_id in range(4):
        append(broker, route, *(f"later {queue_id}-{n}" for n in range(20)), queue_id=queue_id)
    dispatch_all(broker)
    wait_until(lambda: len(first.bodies) + len(second.bodies) == 160)
    first.stop()
    wait_until(lambda: second.assignment == {0, 1, 2, 3})

    bodies = first.bodies + second.bodies
    assert len(bodies) == len(set(bodies)) == 160


def test_members_in_python_and_in_java_share_a_group(
    broker: Connection, fronts: Fronts, java: Callable[..., JavaMember], member: Member
) -> None:
    route = filled(broker, 20, queues=4)
    first = java(A, 4)
    wait_until(lambda: len(first.bodies) == 80)
    inbox = Inbox()
    consumer = member(inbox)
    wait_until(lambda: len(first.assignment) == 2 and len(consumer.assignment) == 2)

    for queue_id in range(4):
        append(broker, route, *(f"later {queue_id}-{n}" for n in range(20)), queue_id=queue_id)
    wait_until(lambda: len(first.bodies) + len(inbox.bodies) == 160)
    consumer.shutdown()
    wait_until(lambda: first.assignment == {0, 1, 2, 3})
    append(broker, route, *(f"last {n}" for n in range(5)), queue_id=3)
    append(broker, route, *(f"last {n + 5}" for n in range(5)), queue_id=0)
    wait_until(lambda: len(first.bodies) + len(inbox.bodies) == 170)

    bodies = first.bodies + inbox.bodies
    assert len(bodies) == len(set(bodies)) == 170


# -- locks ----------------------------------------------------------------------------------------


def test_queues_are_locked_for_one_client_and_unlocked_for_the_next(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker, queues=2)
    client, other = joined(fronts), joined(fronts, B)

    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    assert client.query_offset("readers", "orders", 0) == 0
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    assert other.locks(RequestCode.LOCK_BATCH_MQ, "readers", B, "orders", 0, 1) == []
    client.commit("readers", "orders", 7, 1)
    client.locks(RequestCode.UNLOCK_BATCH_MQ, "readers", A, "orders", 1)
    assert other.locks(RequestCode.LOCK_BATCH_MQ, "readers", B, "orders", 0, 1) == [1]

    assert other.query_offset("readers", "orders", 1) == 7
    assert broker.execute(text("SELECT count(*) FROM mqdb.queue_lock")).scalar() == 2
    assert owner(broker, route, 1) == B


def test_a_client_that_leaves_unlocks_its_queues(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    client, other = joined(fronts), joined(fronts, B)
    client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0)

    client.leave(A, "readers")

    assert other.locks(RequestCode.LOCK_BATCH_MQ, "readers", B, "orders", 0) == [0]


def test_a_client_that_chooses_its_start_locks_before_it_begins(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    client = joined(fronts, where="CONSUME_FROM_TIMESTAMP")

    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0) == [0]
    assert client.take("readers", "orders") == (NONE, None)
    assert client.pull("readers", "orders", 6).bodies == ["0-6", "0-7", "0-8", "0-9"]
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0) == [0]
    assert broker.execute(text("SELECT count(*) FROM mqdb.queue_lock")).scalar() == 1


def test_locks_are_shared_with_members_in_python(
    broker: Connection, fronts: Fronts, orderly_member: OrderlyMember
) -> None:
    route = filled(broker, queues=2)
    client, script = joined(fronts), Script()
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    for queue_id in range(2):
        client.begin_pull("readers", "orders", 10, queue_id, hold_ms=20_000)
    consumer = orderly_member(script)

    client.commit("readers", "orders", 9, 1)
    client.locks(RequestCode.UNLOCK_BATCH_MQ, "readers", A, "orders", 1)
    wait_until(lambda: script.calls == [[9]])

    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0]
    consumer.shutdown()
    assert client.locks(RequestCode.LOCK_BATCH_MQ, "readers", A, "orders", 0, 1) == [0, 1]
    assert client.query_offset("readers", "orders", 1) == stored(broker, route, 1) == 10
