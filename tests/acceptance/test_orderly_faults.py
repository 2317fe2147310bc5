"""Orderly members as processes that are killed, stopped or asked to leave: the order of each queue is kept."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import psutil
import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from mqdb_client.consumer.offsets.offset_store import Lease
from tests.fixtures.broker import append, topic
from tests.fixtures.busy_machine import within
from tests.fixtures.orderly_processes import OrderlyProcess, check_order
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

QUEUES = 4
LOCK_EXPIRY = 1.0


Run = Callable[..., OrderlyProcess]


@pytest.fixture(params=["threads", pytest.param("asyncio", marks=pytest.mark.long)])
def run(database: Database, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Starts orderly members as processes, with the class for threads or for asyncio."""
    started: list[OrderlyProcess] = []

    def start(lock_expiry: float = LOCK_EXPIRY, seconds: float = 0.002, failures_percent: float = 0) -> OrderlyProcess:
        started.append(OrderlyProcess(database.dsn, request.param, lock_expiry, seconds, failures_percent))
        return started[-1]

    yield start
    for process in started:
        process.close()


class Traffic:
    """Sends messages to all queues from a separate thread, which also reads the committed offsets."""

    def __init__(self, engine: Engine, route: TopicRoute) -> None:
        self._engine = engine
        self._route = route
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.sent = 0
        #: When it was seen, by queue, how much was committed.
        self.committed: list[tuple[float, list[int]]] = []

    def _work(self) -> None:
        keys = self._route.queue_keys
        with self._engine.connect() as connection:
            while not self._stopping.wait(0.02):
                for queue_id in range(QUEUES):
                    append(connection, self._route, f"{self.sent}", f"{self.sent + 1}", queue_id=queue_id)
                self.sent += 2
                offsets = committed_offsets(connection, "readers", keys)
                self.committed.append((time.monotonic(), [offsets.get(key, 0) for key in keys]))

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def committed_before(self, queue_id: int, at: float) -> int:
        """The offset of a queue that was certainly committed at a time."""
        return max((offsets[queue_id] for seen_at, offsets in self.committed if seen_at < at), default=0)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *(pytest.param(seed, 5, marks=pytest.mark.long) for seed in (2, 3))]
)
def test_order_holds_whoever_is_killed_and_whoever_joins_or_leaves(
    broker: Connection, engine: Engine, run: Run, seed: int, kills: int
) -> None:
    rng = random.Random(seed)
    route = topic(broker, queues=QUEUES)
    processes = [run(failures_percent=2), run(failures_percent=2)]
    alive = list(processes)
    killed = 0
    with Traffic(engine, route) as traffic:
        while killed < kills:
            before = sum(process.done for process in processes)
            goal = before + rng.randint(50, 300)
            wait_until(lambda: sum(process.done for process in processes) > goal, 30)  # noqa: B023
            victim = rng.choice(alive)
            # Who holds queues, and is in the middle of some messages.
            is_kill = rng.random() < 0.7 and bool(victim.assigned)
            alive.remove(victim)
            victim.end(signal.SIGKILL if is_kill else signal.SIGTERM)
            killed += is_kill
            processes.append(run(failures_percent=2))
            alive.append(processes[-1])
    wait_until(lambda: sum(committed(broker, route)) == QUEUES * traffic.sent, 60)
    for process in alive:
        process.end(signal.SIGTERM)

    check_order(
        [call for process in processes for call in process.calls()], [traffic.sent] * QUEUES, traffic.committed_before
    )
    assert traffic.sent >= 100


def test_row_65_the_queues_of_a_killed_member_move_when_its_lock_has_expired(broker: Connection, run: Run) -> None:
    """Checklist row 65, with a lock of 3 s instead of 60."""
    lock_expiry = 3.0
    topic(broker, queues=QUEUES)
    owner = run(lock_expiry)
    wait_until(lambda: len(owner.assigned) == QUEUES, 30)
    heir = run(lock_expiry)
    wait_until(lambda: len(owner.assigned) == len(heir.assigned) == QUEUES / 2, 30)

    # It may be renewed once more.
    locked_until = broker.scalar(text("SELECT min(expires_at) FROM mqdb.queue_lock"))
    with within(lock_expiry + 3):
        owner.end(signal.SIGKILL)
        wait_until(lambda: len(heir.assigned) == QUEUES, 50)

    assert broker.scalar(text("SELECT mqdb.now()")) >= locked_until
    assert Lease() == Lease(timedelta(seconds=20), timedelta(seconds=30), timedelta(seconds=60))


def test_a_member_that_was_stopped_for_long_starts_nothing_that_is_another_s(
    broker: Connection, engine: Engine, run: Run
) -> None:
    """A member that was stopped for long starts no messages of queues that another member now owns.

    A paused virtual machine stops a member like this. Calls that were running when the member was stopped do not count.
    """
    route = topic(broker, queues=QUEUES)
    with Traffic(engine, route) as traffic:
        stopped = run(seconds=0.01)
        wait_until(lambda: stopped.done > 50, 30)
        stopped.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(stopped.process.pid).status() == psutil.STATUS_STOPPED)
        stopped_at = time.monotonic()
        give_up_all(broker)
        heir = run()
        wait_until(lambda: heir.done > 50 and len(heir.assigned) == QUEUES, 30)
        said = len(stopped.lines)
        stopped.send_signal(signal.SIGCONT)
        # None at first, but that passes quickly; two of them later.
        wait_until(lambda: any(line.startswith("assigned") for line in stopped.lines[said:]), 60)
    wait_until(lambda: sum(committed(broker, route)) == QUEUES * traffic.sent, 60)
    for process in (stopped, heir):
        process.end(signal.SIGTERM)

    # It was at one message of each queue, at most; what it said of them in the end did not count.
    standing = {call for call in stopped.calls() if call.begins < stopped_at < call.ends}
    ended = {call._replace(ends=stopped_at, is_done=False) for call in standing}
    check_order({*stopped.calls(), *heir.calls()} - standing | ended, [traffic.sent] * QUEUES, traffic.committed_before)


def give_up_all(broker: Connection) -> None:
    """Give up all members, as the broker does with members that are silent for two minutes."""
    broker.execute(text("DELETE FROM mqdb.client"))
    broker.execute(text("UPDATE mqdb.consumer_offset SET owner = NULL"))


def committed(broker: Connection, route: TopicRoute) -> list[int]:
    """The group's offset on each queue that the group has read."""
    return list(committed_offsets(broker, "readers", route.queue_keys).values())
