"""Row 70 of the checklist: a member whose connection closes is removed at once, a silent one after 120 s."""

import signal
import time

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.clients.membership import CLIENT_EXPIRY
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, topic
from tests.fixtures.busy_machine import within
from tests.fixtures.consumer_processes import ConsumerProcess, RunConsumer
from tests.fixtures.consumers import Inbox, Member, duplicates
from tests.fixtures.processes import wait_until

#: Usual is one second.
TAKEOVER_SECONDS = 3.0
QUEUES = 4


def send(broker: Connection, route: TopicRoute, first: int, count: int) -> None:
    for number in range(first, first + count):
        append(broker, route, f"{number}", queue_id=number % QUEUES)


def share(process: ConsumerProcess, member: Member, inbox: Inbox) -> None:
    """Start another member in this process, and wait until each member has half of the queues."""
    wait_until(lambda: process.assigned, 30)
    here = member(inbox)
    wait_until(lambda: len(process.assigned) == len(here.assignment) == QUEUES // 2, 30)


def owned_by_others(broker: Connection, client_id: str) -> int:
    """The number of queues that other members own."""
    count = text(
        "SELECT count(*) FROM mqdb.consumer_offset c JOIN mqdb.queue q USING (queue_key) "
        "JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'orders' AND c.owner <> :client_id"
    )
    return int(broker.execute(count, {"client_id": client_id}).scalar_one())


def client_of(broker: Connection, process: ConsumerProcess) -> str:
    found = text("SELECT client_id FROM mqdb.client WHERE kind = 'CONSUMER' AND client_id LIKE :pattern")
    return str(broker.execute(found, {"pattern": f"%@{process.process.pid}#%"}).scalar_one())


def test_row_70_a_member_that_was_killed_is_replaced_at_once(
    served: Connection, member: Member, run_consumer: RunConsumer
) -> None:
    route = topic(served, queues=QUEUES)
    inbox, process = Inbox(), run_consumer()
    share(process, member, inbox)
    client_id = client_of(served, process)
    send(served, route, 0, 200)
    wait_until(lambda: len(process.bodies) > 20)

    with within(TAKEOVER_SECONDS):
        process.end(signal.SIGKILL)
        wait_until(lambda: owned_by_others(served, client_id) == QUEUES)
    send(served, route, 200, 200)
    wait_until(lambda: {*process.bodies, *inbox.bodies} >= {f"{number}" for number in range(400)}, 30)

    assert duplicates(inbox) == {}


@pytest.mark.slow
def test_row_70_a_member_that_hangs_keeps_its_queues_for_120_seconds(
    served: Connection, member: Member, run_consumer: RunConsumer
) -> None:
    """The two minutes pass only in the database: the test sets the time of the last sign of life."""
    # Given a member that is stopped: its connections stay open, but nothing is heard of it
    route = topic(served, queues=QUEUES)
    inbox, process = Inbox(), run_consumer()
    share(process, member, inbox)
    client_id = client_of(served, process)
    stop_between_transactions(served, process, client_id)

    # when that lasts less than 120 s, then its queues are its own
    be_silent(served, client_id, CLIENT_EXPIRY.total_seconds() - 30)
    stopped_at = time.monotonic()
    wait_until(lambda: time.monotonic() - stopped_at > TAKEOVER_SECONDS)
    assert owned_by_others(served, client_id) == QUEUES // 2

    # and when it lasts longer, another member gets them, with all that is in them;
    with within(TAKEOVER_SECONDS):
        be_silent(served, client_id, CLIENT_EXPIRY.total_seconds() + 1)
        wait_until(lambda: owned_by_others(served, client_id) == QUEUES)
    send(served, route, 0, 100)
    wait_until(lambda: set(inbox.bodies) == {f"{number}" for number in range(100)}, 30)

    # but when it goes on after all, it is a member again.
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: owned_by_others(served, client_id) == QUEUES // 2, 60)
    send(served, route, 100, 100)
    wait_until(lambda: {*process.bodies, *inbox.bodies} == {f"{number}" for number in range(200)}, 30)
    assert duplicates(inbox) == {}


def stop_between_transactions(broker: Connection, process: ConsumerProcess, client_id: str) -> None:
    """Stop the process between transactions: in a transaction it would keep others from changing its row."""
    states = text("SELECT state FROM pg_stat_activity WHERE starts_with(application_name, :name) AND state <> 'idle'")

    def states_of() -> list[str]:
        return list(broker.scalars(states, {"name": f"mqdb {client_id}"}))

    while True:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: "active" not in states_of())  # the server goes on with what it was asked for
        if not states_of():
            return
        process.send_signal(signal.SIGCONT)


def be_silent(broker: Connection, client_id: str, seconds: float) -> None:
    silent = text("UPDATE mqdb.client SET heartbeat_at = mqdb.now() - :seconds * interval '1 s' WHERE client_id = :id")
    broker.execute(silent, {"seconds": seconds, "id": client_id})
