"""Answers to RocketMQ's clients when their queues are lost or reset, and after restarts and lost connections."""

import asyncio
import gc
import logging
import re
import time
from asyncio import run_coroutine_threadsafe
from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers import groups, offset_reset
from mqdb.broker.consumers.offset_reset import Boundary
from mqdb.common.dsn import BrokerDsn
from mqdb.errors import BrokerUnavailable
from mqdb.fronts.database import Database
from mqdb.remoting.session import members
from mqdb.remoting.wire.codes import RequestCode
from mqdb.store.engine import create_engine
from mqdb.store.topics.topics import find_topic
from mqdb_client.instance import ClientInstance
from tests.fixtures.broker import append, dispatch_all
from tests.fixtures.history import Past
from tests.fixtures.postgres import Database as PastDatabase
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import (
    PATIENCE_SECONDS,
    UNDISTURBED,
    Fronts,
    Pulled,
    RemotingClient,
    consumer,
    pulled,
)
from tests.fixtures.remoting_groups import (
    MOVED,
    NO_NEW,
    NO_PERMISSION,
    A,
    B,
    filled,
    joined,
    owner,
    stored,
    wait_for_pull,
)


def test_a_reset_is_obeyed_by_the_next_pull_and_by_one_that_waits(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    client = joined(fronts)
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 10)
    wait_until(lambda: stored(broker, route) == 10)
    held = client.begin_pull("readers", "orders", 10, hold_ms=20_000)

    offset_reset.reset_offsets(broker, "readers", "orders", Boundary.EARLIEST)
    moved = pulled(held.result(PATIENCE_SECONDS))
    if moved.code == NO_NEW:  # somebody had locked the row of the queue, so the client is to come again
        moved = wait_for_pull(client, 10, lambda each: each.code == MOVED)
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


def test_a_member_without_a_queue_gets_none_of_a_group_that_is_switched_off(broker: Connection, fronts: Fronts) -> None:
    filled(broker)
    client = joined(fronts)

    groups.update_group(broker, "readers", consume_enable=False)

    wait_for_pull(client, 0, lambda each: each.code == NO_PERMISSION)


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


def test_a_client_goes_on_where_it_is_after_a_restart_of_the_front(broker: Connection, fronts: Fronts) -> None:
    route = filled(broker)
    front = fronts.start()
    client = joined(fronts)
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 3)
    wait_until(lambda: stored(broker, route) == 3)
    front.stop()

    fronts.start(UNDISTURBED, port=front.address.port)
    again = fronts.connect(front)
    pulling = again.begin_pull("readers", "orders", 7)  # before it says who it is
    again.heartbeat(A, consumer(orders="*"))

    assert pulled(pulling.result(PATIENCE_SECONDS)).bodies == ["0-7", "0-8", "0-9"]
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


def test_a_restart_of_the_server_leaves_a_client_where_it_is(past: Past, caplog: pytest.LogCaptureFixture) -> None:
    fronts = Fronts(PastDatabase(past.dsn))
    try:
        sent_to(past, "a", "b", "c", "d")
        client = joined(fronts)
        client.query_offset("readers", "orders")
        assert client.pull("readers", "orders", 0, commit=2).bodies == ["a", "b", "c", "d"]
        client.query_offset("readers", "orders")  # writes
        assigned = in_assign_mode(fronts)
        assert pull_assigned(assigned, 0).bodies == ["a", "b", "c", "d"]
        assigned.commit("assigned", "orders", 1)
        assigned.query_offset("assigned", "orders")

        past.restart()
        sent_to(past, "e")

        assert wait_for_pull(client, 4, lambda each: each.code in (0, MOVED)).bodies == ["e"]
        assigned.commit("assigned", "orders", 4)
        assert pull_assigned(assigned, 4).bodies == ["e"]
        assert "another member has it, or its offset was set" not in caplog.text
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
        assigned = in_assign_mode(fronts)
        assigned.commit("assigned", "orders", 1)
        assert assigned.query_offset("assigned", "orders") == 1
        past.save("two")
        sent_to(past, "c", "d")
        wait_for_pull(client, 2, lambda each: each.bodies == ["c", "d"])
        assert pull_assigned(assigned, 2).bodies == ["c", "d"]

        past.return_to("two")
        sent_to(past, "e", "f", "g")
        moved = wait_for_pull(client, 4, lambda each: each.code in (0, MOVED))

        assert (moved.code, moved.next_offset) == (MOVED, 1)
        assert client.pull("readers", "orders", 1).bodies == ["b", "e", "f", "g"]
        assigned.commit("assigned", "orders", 4)  # it has not heard yet
        moved = pull_assigned(assigned, 4)
        assert (moved.code, moved.next_offset) == (MOVED, 1)
        assert pull_assigned(assigned, 1).bodies == ["b", "e", "f", "g"]
    finally:
        fronts.close()


def test_a_reader_whose_commit_finds_that_the_server_was_restarted_goes_on(broker: Connection, fronts: Fronts) -> None:
    """A reader whose commit detects that the server was restarted continues.

    This happens behind a pooler: no new connection reveals the restart earlier.
    """
    filled(broker)
    front, client = fronts.start(), in_assign_mode(fronts)
    assert len(pull_assigned(client, 0).bodies) == 10  # now the route is known, and what follows is handled in turn
    client.commit("assigned", "orders", 1)
    assert client.query_offset("assigned", "orders") == 1
    assert front._instance is not None
    routes = front._instance.routes
    route = routes.known("orders")
    assert route is not None
    routes.remember(replace(route, history=route.history - 1))

    client.commit("assigned", "orders", 9)

    assert client.query_offset("assigned", "orders") == 1
    assert client.pull("assigned", "orders", 10, expression=("TAG", "*")).code == NO_NEW
    client.commit("assigned", "orders", 10)
    assert client.query_offset("assigned", "orders") == 10


def in_assign_mode(fronts: Fronts) -> RemotingClient:
    """A lite pull consumer whose user has chosen the queues: it has no subscription."""
    client = fronts.connect()
    client.heartbeat(B, consumer("assigned", type="CONSUME_ACTIVELY"))
    return client


def pull_assigned(client: RemotingClient, offset: int) -> Pulled:
    """The client's next pull that returns messages or a new offset."""
    found: list[Pulled] = []

    def is_there() -> bool:
        found.append(client.pull("assigned", "orders", offset, expression=("TAG", "*")))
        return found[-1].code in (0, MOVED)

    wait_until(is_there)
    return found[-1]


def sent_to(past: Past, *bodies: str) -> None:
    engine = create_engine(past.dsn)
    with engine.connect() as connection:
        route = find_topic(connection, "orders")
        assert route is not None
        append(connection, route, *bodies)
        dispatch_all(connection)
    engine.dispose()


def test_a_connection_that_breaks_under_a_request_is_an_error_of_ours(database: PastDatabase) -> None:
    async def ask() -> None:
        instance = ClientInstance(BrokerDsn("broker-a", database.dsn))
        instance.open()
        below = Database(instance, "remoting")
        try:
            await below.run(
                lambda connection: connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
            )
        finally:
            await below.close()
            instance.close()

    with pytest.raises(BrokerUnavailable):
        asyncio.run(ask())


def test_a_client_that_goes_without_a_word_keeps_its_queues_for_a_while(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "GRACE_SECONDS", 0.5)
    route = filled(broker)
    fronts.start(UNDISTURBED)
    client, other = joined(fronts), joined(fronts, B)
    client.query_offset("readers", "orders")
    client.commit("readers", "orders", 6)
    client.begin_pull("readers", "orders", 10, hold_ms=20_000)
    client.request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})

    closing_at = time.monotonic()
    client.close()

    wait_until(lambda: other.pull("readers", "orders", 6).bodies)
    assert time.monotonic() - closing_at >= 0.5
    assert (owner(broker, route), stored(broker, route)) == (B, 6)


def test_a_front_that_stops_waits_for_no_client(broker: Connection, fronts: Fronts) -> None:
    """A front that stops waits for no client, neither for one that left earlier nor for those that it disconnects."""
    filled(broker)
    front, gone = fronts.start(), joined(fronts)
    joined(fronts, B)
    [members_here] = members_of_fronts(A)
    gone.close()
    wait_until(lambda: members_here.clients[A].grace)
    clients = [members_here.clients[client_id] for client_id in (A, B)]

    front.stop()

    assert [each.grace is None or each.grace.cancelled() for each in clients] == [True, True]


def test_a_client_that_comes_while_the_database_is_down_is_taken_when_it_is_there(
    past: Past, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that connects while the database is down is registered once the database is up.

    The client need not wait for its next heartbeat. A client that leaves earlier causes no error.
    """
    monkeypatch.setattr(members, "GRACE_SECONDS", 0.1)
    caplog.set_level(logging.DEBUG, "mqdb.remoting")
    fronts = Fronts(PastDatabase(past.dsn))
    try:
        sent_to(past, "a", "b")
        going = joined(fronts)
        going.query_offset("readers", "orders")
        client = fronts.connect()

        with past.stopped():
            going.close()
            client.heartbeat(B, consumer("others", orders="*"))
            wait_until(lambda: "could not remove client" in caplog.text)

        wait_until(lambda: client.pull("others", "orders", 0).bodies == ["a", "b"])
    finally:
        fronts.close()
    gc.collect()  # tasks tell of their errors when they go
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_client_that_has_come_to_another_front_is_not_taken_out_of_its_group(
    broker: Connection, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has moved to another front is not removed from its group.

    This happens behind a load balancer when a connection is lost, and the first front has waited in vain.
    """
    monkeypatch.setattr(members, "GRACE_SECONDS", 0.5)
    route = filled(broker)
    here, elsewhere = fronts.start(), fronts.start()
    first = fronts.connect(here)
    first.heartbeat(A, consumer(orders="*"))
    first.query_offset("readers", "orders")
    first.close()
    again = fronts.connect(elsewhere)
    again.heartbeat(A, consumer(orders="*"))
    assert again.pull("readers", "orders", 0).code == 0
    epoch = text("SELECT owner, epoch FROM mqdb.consumer_offset WHERE queue_key = :key")
    before = broker.execute(epoch, {"key": route.queue_keys[0]}).one()

    wait_until(lambda: waiting_for(A) == 1)
    seen = []
    until = time.monotonic() + 0.5  # behind what the first one does then
    while time.monotonic() < until:
        seen.append(again.members("readers"))

    assert seen == [[A]] * len(seen)
    assert broker.execute(epoch, {"key": route.queue_keys[0]}).one() == before


def test_a_client_that_has_come_to_another_front_stays_there(broker: Connection, fronts: Fronts) -> None:
    """A client that has moved to another front stays there.

    This also holds if the first front registers its clients again after losing its notification connection.
    """
    filled(broker)
    here, elsewhere = fronts.start(), fronts.start()
    first = fronts.connect(here)
    first.heartbeat(A, consumer(orders="*"))
    [members_here] = members_of_fronts(A)
    first.close()
    wait_until(lambda: members_here.clients[A].connection is None)
    fronts.connect(elsewhere).heartbeat(A, consumer(orders="*"))
    through = text("SELECT lock_key FROM mqdb.presence WHERE client_id = :id")
    before = broker.scalar(through, {"id": A})

    run_coroutine_threadsafe(members_here._renew([members_here.clients[A]]), members_here._database.loop).result(
        PATIENCE_SECONDS
    )

    assert broker.scalar(through, {"id": A}) == before


def test_a_front_whose_presence_the_reaper_has_removed_says_what_it_waits_for(
    broker: Connection, fronts: Fronts, caplog: pytest.LogCaptureFixture
) -> None:
    """A front whose presence the reaper has removed logs what it waits for.

    After a restart of PostgreSQL the reaper may be faster than the front's notification connection.
    """
    caplog.set_level(logging.DEBUG, "mqdb.remoting")
    filled(broker)
    front = fronts.start()
    joined(fronts)
    assert front._instance is not None
    broker.execute(text("DELETE FROM mqdb.presence WHERE client_id = :id"), {"id": front._instance.client_id})

    front._instance._group_changes.call(None)

    told = "could not re-register clients; will retry: .*the connection for notifications does not exist yet"
    wait_until(lambda: re.search(told, caplog.text))


def waiting_for(client_id: str) -> int:
    """The number of fronts that list a client."""
    return len(members_of_fronts(client_id))


def members_of_fronts(client_id: str) -> list[members.FrontMembers]:
    """The members of each front that lists a client."""
    gc.collect()
    of_fronts = [each for each in gc.get_objects() if isinstance(each, members.FrontMembers)]
    return [each for each in of_fronts if client_id in each.clients]
