"""Consumers as processes that are killed, or asked to stop."""

import signal

import pytest
from sqlalchemy import Connection, Engine

from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, topic
from tests.fixtures.busy_machine import within
from tests.fixtures.consumer_processes import RunConsumer
from tests.fixtures.consumers import Inbox, Member, duplicates
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

# Usual is one second; the other member looks for dead ones that often.
TAKEOVER_SECONDS = 3.0


def send(broker: Connection, route: TopicRoute, first: int, count: int) -> None:
    for number in range(first, first + count):
        append(broker, route, f"{number}", queue_id=number % len(route.queue_keys))


def test_row_70_the_queues_of_a_killed_member_are_taken_over_at_once(
    broker: Connection, engine: Engine, member: Member, run_consumer: RunConsumer
) -> None:
    """Checklist row 70, the closed connection, without a broker process.

    The messages that the killed member held are delivered to the other member.
    """
    route = topic(broker, queues=4)
    inbox = Inbox()
    survivor = member(inbox)
    process = run_consumer()
    wait_until(lambda: len(process.assigned) == len(survivor.assignment) == 2, 30)
    send(broker, route, 0, 400)
    wait_until(lambda: len(process.bodies) > 50)

    with within(TAKEOVER_SECONDS):
        process.end(signal.SIGKILL)
        wait_until(lambda: len(survivor.assignment) == 4)
    send(broker, route, 400, 400)
    wait_until(lambda: {*process.bodies, *inbox.bodies} >= {f"{number}" for number in range(800)}, 30)

    assert duplicates(inbox) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_member_that_is_told_to_stop_leaves_nothing_undone(
    broker: Connection, member: Member, run_consumer: RunConsumer, number: signal.Signals
) -> None:
    route = topic(broker, queues=4)
    process = run_consumer()
    wait_until(lambda: len(process.assigned) == 4, 30)
    send(broker, route, 0, 200)
    wait_until(lambda: len(process.bodies) > 50)

    assert process.end(number) == 0
    assert process.lines[-1] == "left"
    done = sum(committed_offsets(broker, "readers", route.queue_keys).values())
    assert done == len(process.bodies)
    heir = Inbox()
    member(heir)
    heir.wait_for(200 - done)

    assert sorted(map(int, process.bodies + heir.bodies)) == list(range(200))


@pytest.mark.parametrize("number", usually(signal.SIGTERM, of=[signal.SIGTERM, signal.SIGINT]))
def test_a_second_signal_ends_a_member_whose_listener_hangs(
    broker: Connection, member: Member, run_consumer: RunConsumer, number: signal.Signals
) -> None:
    route = topic(broker)
    process = run_consumer("stuck")
    append(broker, route, "1", "stuck", "2")
    wait_until(lambda: "waiting" in process.lines and len(process.bodies) == 2, 30)

    process.process.send_signal(number)
    wait_until(lambda: process.lines[-1] == "assigned")
    wait_until(lambda: process.said_of_shutdown)
    assert process.process.poll() is None
    assert process.end(number) == -number
    [line] = process.said_of_shutdown
    assert "Traceback" not in "".join(process.errors)
    assert line.startswith("shutdown in group readers waits for 1 running listeners, 2")
    assert line.endswith("a second SIGINT or SIGTERM leaves them at once")
    heir = Inbox()
    member(heir, consume_thread_nums=1)
    heir.wait_for(2)

    # With what was done before it, unless 5 s were over and that was stored.
    assert heir.bodies[0] in ("1", "stuck")


def test_a_member_whose_listener_hangs_gives_up_in_time_and_ends(
    broker: Connection, member: Member, run_consumer: RunConsumer
) -> None:
    route = topic(broker)
    process = run_consumer("stuck", "1")
    append(broker, route, "1", "stuck", "2")
    wait_until(lambda: "waiting" in process.lines and len(process.bodies) == 2, 30)

    assert process.end(signal.SIGTERM) == 1

    assert process.said_of_shutdown[0].startswith("shutdown in group readers waits for 1 running listeners, ")
    assert process.errors[-1] == (
        "mqdb.errors.ShutdownTimedOut: left group 'readers' after 1 s while 1 of its listeners were running; "
        "their messages will be redelivered"
    )
    heir = Inbox()
    member(heir, consume_thread_nums=1)
    heir.wait_for(2)
    assert heir.bodies == ["stuck", "2"]
