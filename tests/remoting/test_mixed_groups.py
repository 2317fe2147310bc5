"""A group has members in Java and in Python, while members, fronts and PostgreSQL are killed.

Every run prints its seed and what was killed. MQDB_FAULT_RUNS is the number of runs, MQDB_FAULT_SEED the seed of the
first. Groups that consume in order have at most three runs.
"""

import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from mqdb.errors import MqdbError
from mqdb_client import Admin, Message, Producer
from tests.fixtures.consumer_processes import ConsumerProcess
from tests.fixtures.faults import FaultyBroker, faulty_broker
from tests.fixtures.orderly_processes import Call, OrderlyProcess, calls_of, check_order
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_kit import NEW, OLD, GetKit, JavaKit, KitProcess, served_front

logger = logging.getLogger(__name__)

RUNS = int(os.environ.get("MQDB_FAULT_RUNS", "2"))
FIRST_SEED = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

TOPIC, GROUP, QUEUES = "orders", "readers", 8
ACTIONS = 14
MOST_MEMBERS = 4
#: Of listeners that consume in order, and of the members in Python among them; those in Java have a lock for 60 s.
WORK_MS, PYTHON_LOCK_EXPIRY = 2, 3.0
#: A client whose front was killed is waited for, and one that was killed itself too: 30 s each.
PATIENCE_SECONDS = 180.0


class FrontProcess:
    """`mqdb remoting` on its own port, which it keeps when it is restarted."""

    def __init__(self, dsn: str, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._dsn, self._log = dsn, log
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mqdb", "remoting", "--dsn", self._dsn, "--address", self.address]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline() for _ in range(3)]
        assert self.address in "".join(lines), self._log.read_text()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self.end()

    def end(self) -> None:
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Load:
    """Sends numbers until the test stops it; a number whose send failed is sent again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ending = threading.Event()
        self.sent: list[str] = []
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        with Producer("load", self._dsn) as producer:
            number = 0
            while not self._ending.is_set():
                with suppress(MqdbError):
                    producer.send(Message(TOPIC, str(number)), timeout=timedelta(seconds=2))
                    self.sent.append(str(number))
                    number += 1
                self._ending.wait(0.004)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


class Progress:
    """Constantly records how far the group has committed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ending = threading.Event()
        #: When it was seen, and how much, by queue.
        self._seen: list[tuple[float, dict[int, int]]] = []
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        with Admin(self._dsn) as admin:
            while not self._ending.wait(0.05):
                with suppress(MqdbError):  # the group is not there yet, or PostgreSQL is not
                    found = admin.groups.show(GROUP, TOPIC).progress
                    self._seen.append((time.monotonic(), {each.queue_id: each.next_offset for each in found}))

    def committed_before(self, queue_id: int, at: float) -> int:
        """The offset of a queue that was certainly committed at a time."""
        return max((offsets.get(queue_id, 0) for seen_at, offsets in self._seen if seen_at < at), default=0)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


@dataclass
class Group:
    """The members of the group, including those that are gone."""

    dsn: str
    fronts: list[FrontProcess]
    kits: list[JavaKit]
    chance: random.Random
    is_orderly: bool = False
    java: list[KitProcess] = field(default_factory=list)
    python: list[ConsumerProcess] = field(default_factory=list)
    gone: list[KitProcess | ConsumerProcess] = field(default_factory=list)

    def join(self) -> str:
        if self.chance.random() < 0.5:
            return self.join_in_python()
        return self.join_in_java()

    def join_in_python(self) -> str:
        orderly = (self.dsn, "threads", PYTHON_LOCK_EXPIRY, WORK_MS / 1_000, 0)
        self.python.append(OrderlyProcess(*orderly) if self.is_orderly else ConsumerProcess(self.dsn))
        return "a member in Python joins"

    def join_in_java(self) -> str:
        kit, front = self.chance.choice(self.kits), self.chance.choice(self.fronts)
        binary = self.chance.random() < 0.5
        options = ("--orderly", "--work-ms", str(WORK_MS)) if self.is_orderly else ()
        arguments = ("--topic", TOPIC, "--group", GROUP, *options)
        self.java.append(KitProcess(kit, "consume", front.address, *arguments, binary=binary))
        return f"a member in Java {kit.version} joins"

    def leave(self, *, is_killed: bool) -> str:
        if self.java and (not self.python or self.chance.random() < 0.5):
            member = self.java.pop(self.chance.randrange(len(self.java)))
            self.gone.append(member)
            member.kill() if is_killed else member.leave()
            return f"a member in Java {'is killed' if is_killed else 'leaves'}"
        other = self.python.pop(self.chance.randrange(len(self.python)))
        self.gone.append(other)
        other.end(signal.SIGKILL if is_killed else signal.SIGTERM)
        return f"a member in Python {'is killed' if is_killed else 'leaves'}"

    @property
    def everybody(self) -> list[KitProcess | ConsumerProcess]:
        return [*self.gone, *self.java, *self.python]

    @property
    def consumed(self) -> Counter[str]:
        return Counter(body for member in self.everybody for body in _consumed(member))

    def close(self) -> None:
        for member in self.everybody:
            member.close()


def _consumed(member: KitProcess | ConsumerProcess) -> list[str]:
    return member.said("consumed") if isinstance(member, KitProcess) else member.bodies


def _calls(member: KitProcess | ConsumerProcess) -> Iterator[Call]:
    """The listener calls of an orderly member."""
    if isinstance(member, OrderlyProcess):
        return member.calls()
    assert isinstance(member, KitProcess)
    names = {"body": "begin", "consumed": "done", "failed": "failed"}
    said = [(what, line) for line in member.lines for name, what in names.items() if name in line]
    return calls_of(
        ((what, line["queue_id"], line["offset"], line["at"]) for what, line in said), died_at=member.ended_at
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    with faulty_broker(tmp_path) as broker:
        broker.start_serving()
        create_topic(broker.dsn)
        yield broker


def create_topic(dsn: str) -> None:
    with Admin(dsn) as admin:
        admin.topics.create(TOPIC, queues=QUEUES)


def test_a_member_in_java_and_one_in_python_share_a_group(database: Database, java_kit: GetKit, tmp_path: Path) -> None:
    """A Java member and a Python member split the queues, and each takes over those that the other leaves.

    No message is lost or delivered twice.
    """
    with ExitStack() as stack:
        front = stack.enter_context(served_front(database.dsn, tmp_path))
        create_topic(database.dsn)
        group = Group(database.dsn, [], [], random.Random(1))
        stack.callback(group.close)
        group.python.append(ConsumerProcess(database.dsn))
        member = KitProcess(java_kit(NEW), "consume", str(front.address), "--topic", TOPIC, "--group", GROUP)
        group.java.append(member)
        wait_until(lambda: len(group.python[0].assigned) == QUEUES // 2, PATIENCE_SECONDS)
        wait_until(lambda: len((member.said("queues") or [[]])[-1]) == QUEUES // 2, PATIENCE_SECONDS)
        load = Load(database.dsn)
        stack.callback(load.end)

        wait_until(lambda: len(member.said("consumed")) > 30 and len(group.python[0].bodies) > 30, PATIENCE_SECONDS)
        member.leave()
        wait_until(lambda: len(group.python[0].assigned) == QUEUES, PATIENCE_SECONDS)
        load.end()

        wait_until(lambda: not set(load.sent) - group.consumed.keys(), PATIENCE_SECONDS)
        assert group.consumed.total() == len(group.consumed)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", range(RUNS))
def test_nothing_is_lost_whoever_is_killed(broker: FaultyBroker, java_kit: GetKit, tmp_path: Path, run: int) -> None:
    seed = FIRST_SEED + run
    chance = random.Random(seed)
    story = [f"seed {seed}"]
    with ExitStack() as stack:
        fronts, group = _started(stack, broker, java_kit, tmp_path, chance)
        story += [group.join(), group.join()]
        load = Load(broker.dsn)
        stack.callback(load.end)
        for _ in range(ACTIONS):
            time.sleep(chance.uniform(0.5, 3))  # the load goes on
            what = chance.choices(("join", "leave", "kill", "front", "postgres", "serve"), (5, 3, 3, 2, 1, 1))[0]
            story.append(_act(what, chance, group, fronts, broker))
        # A member in Java whose front is killed while it starts has ended.
        story.append(group.join_in_python())
        load.end()
        logger.warning("\n".join(story))

        assert len(load.sent) > 500
        wait_until(lambda: not set(load.sent) - group.consumed.keys(), PATIENCE_SECONDS)
        twice = group.consumed.total() - len(group.consumed)
        logger.warning("%d sent, none lost, %d came again", len(load.sent), twice)
    for number in range(2):
        log = (tmp_path / f"front-{number}.log").read_text()
        assert "unforeseen" not in log, log


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", range(min(RUNS, 3)))
def test_each_queue_keeps_its_order_whoever_is_killed(
    broker: FaultyBroker, java_kit: GetKit, tmp_path: Path, run: int
) -> None:
    """Each queue keeps its order, whichever process is killed.

    After a kill, messages may be delivered again from the committed offset on, and then all later ones are, too.
    """
    seed = FIRST_SEED + run
    chance = random.Random(seed)
    story = [f"seed {seed}"]
    with ExitStack() as stack:
        fronts, group = _started(stack, broker, java_kit, tmp_path, chance, is_orderly=True)
        story += [group.join_in_python(), group.join_in_java(), group.join_in_java()]
        progress = Progress(broker.dsn)
        stack.callback(progress.end)
        load = Load(broker.dsn)
        stack.callback(load.end)
        at_first, later = ["join", "join", "leave", "kill", "front"], ["join", "kill", "front", "serve"]
        chance.shuffle(at_first)
        chance.shuffle(later)
        for what in (*at_first, "postgres", *later):
            time.sleep(chance.uniform(0.5, 5))  # the load goes on
            story.append(_act(what, chance, group, fronts, broker))
        # A member in Java whose front is killed while it starts has ended.
        story.append(group.join_in_python())
        load.end()
        logger.warning("\n".join(story))

        # The lock of a member in Java that was killed is waited for, and that is a minute.
        ends: list[int] = []
        with Admin(broker.dsn) as admin:
            wait_until(lambda: _all_is_committed(admin, ends, len(load.sent)), PATIENCE_SECONDS)
        calls = [call for member in group.everybody for call in _calls(member)]
        check_order(calls, ends, progress.committed_before)
        twice = sum(call.is_done for call in calls) - sum(ends)
        logger.warning("%d sent, none lost, %d came again", len(load.sent), twice)


def _started(
    stack: ExitStack,
    broker: FaultyBroker,
    java_kit: GetKit,
    logs: Path,
    chance: random.Random,
    is_orderly: bool = False,
) -> tuple[list[FrontProcess], Group]:
    """Two fronts, and a group without members. The fronts and the group are closed with the stack."""
    fronts = [FrontProcess(broker.dsn, logs / f"front-{number}.log") for number in range(2)]
    for front in fronts:
        stack.callback(front.stop)
    group = Group(broker.dsn, fronts, [java_kit(NEW), java_kit(OLD)], chance, is_orderly=is_orderly)
    stack.callback(group.close)
    return fronts, group


def _all_is_committed(admin: Admin, ends: list[int], sent: int) -> bool:
    """Whether the group has nothing left to do; puts the max offsets of the queues into `ends`."""
    found = sorted(admin.groups.show(GROUP, TOPIC).progress, key=lambda each: each.queue_id)
    ends[:] = [each.max_offset for each in found]
    return sum(ends) >= sent and all(each.next_offset == each.max_offset for each in found)


def _act(what: str, chance: random.Random, group: Group, fronts: list[FrontProcess], broker: FaultyBroker) -> str:
    members = len(group.java) + len(group.python)
    match what:
        case "join" if members < MOST_MEMBERS:
            return group.join()
        case "leave" if members > 1:
            return group.leave(is_killed=False)
        case "kill" if members > 1:
            return group.leave(is_killed=True)
        case "front":
            front = chance.choice(fronts)
            front.kill()
            time.sleep(chance.uniform(0, 2))
            front.start()
            return f"front {front.address} is killed, and started again"
        case "postgres":
            killed = broker.kill_postgres(chance)
            broker.server.restart()
            return f"{killed} is killed, and started again"
        case "serve":
            killed = ", ".join(broker.kill_serving(chance))
            broker.start_serving()
            return f"{killed} is killed, and started again"
    return "nothing"
