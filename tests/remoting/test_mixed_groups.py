"""A group with members in Java and in Python, while members, fronts and PostgreSQL are killed.

Every run prints its seed and what was killed. MQDB_FAULT_RUNS says how many, MQDB_FAULT_SEED is the seed of the first.
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
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_kit import NEW, OLD, GetKit, JavaKit, KitProcess

logger = logging.getLogger(__name__)

RUNS = int(os.environ.get("MQDB_FAULT_RUNS", "2"))
FIRST_SEED = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

TOPIC, GROUP, QUEUES = "orders", "readers", 8
ACTIONS = 14
MOST_MEMBERS = 4
#: A client whose front was killed is waited for, and one that was killed itself too: 30 s each.
PATIENCE_SECONDS = 180.0


class FrontProcess:
    """`mqdb remoting` on a port of its own, which stays the same when it is started again."""

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
    """Sends numbers until it is told to stop; one whose send failed is sent again."""

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


@dataclass
class Group:
    """The members of the group, and what those have consumed that are gone."""

    dsn: str
    fronts: list[FrontProcess]
    kits: list[JavaKit]
    chance: random.Random
    java: list[KitProcess] = field(default_factory=list)
    python: list[ConsumerProcess] = field(default_factory=list)
    gone: Counter[str] = field(default_factory=Counter)

    def join(self) -> str:
        if self.chance.random() < 0.5:
            self.python.append(ConsumerProcess(self.dsn))
            return "a member in Python joins"
        kit, front = self.chance.choice(self.kits), self.chance.choice(self.fronts)
        binary = self.chance.random() < 0.5
        self.java.append(KitProcess(kit, "consume", front.address, "--topic", TOPIC, "--group", GROUP, binary=binary))
        return f"a member in Java {kit.version} joins"

    def leave(self, *, is_killed: bool) -> str:
        if self.java and (not self.python or self.chance.random() < 0.5):
            member = self.java.pop(self.chance.randrange(len(self.java)))
            member.kill() if is_killed else member.leave()
            self.gone.update(member.said("consumed"))
            member.close()
            return f"a member in Java {'is killed' if is_killed else 'leaves'}"
        other = self.python.pop(self.chance.randrange(len(self.python)))
        other.end(signal.SIGKILL if is_killed else signal.SIGTERM)
        self.gone.update(other.bodies)
        other.close()
        return f"a member in Python {'is killed' if is_killed else 'leaves'}"

    @property
    def consumed(self) -> Counter[str]:
        here = Counter(body for member in self.java for body in member.said("consumed"))
        return self.gone + here + Counter(body for member in self.python for body in member.bodies)

    def close(self) -> None:
        for member in self.java:
            member.close()
        for other in self.python:
            other.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    with faulty_broker(tmp_path) as broker:
        broker.start_serving()
        with Admin(broker.dsn) as admin:
            admin.topics.create(TOPIC, queues=QUEUES)
        yield broker


def test_a_member_in_java_and_one_in_python_share_a_group(
    broker: FaultyBroker, java_kit: GetKit, tmp_path: Path
) -> None:
    """They split the queues, and each takes over what the other leaves: nothing is lost, nothing comes twice."""
    with ExitStack() as stack:
        front = FrontProcess(broker.dsn, tmp_path / "front.log")
        stack.callback(front.stop)
        group = Group(broker.dsn, [front], [java_kit(NEW)], random.Random(1))
        stack.callback(group.close)
        group.python.append(ConsumerProcess(broker.dsn))
        member = KitProcess(java_kit(NEW), "consume", front.address, "--topic", TOPIC, "--group", GROUP)
        group.java.append(member)
        wait_until(lambda: len(group.python[0].assigned) == QUEUES // 2, PATIENCE_SECONDS)
        wait_until(lambda: len((member.said("queues") or [[]])[-1]) == QUEUES // 2, PATIENCE_SECONDS)
        load = Load(broker.dsn)
        stack.callback(load.end)

        wait_until(lambda: len(member.said("consumed")) > 30 and len(group.python[0].bodies) > 30, PATIENCE_SECONDS)
        member.leave()
        group.gone = Counter(member.said("consumed"))
        group.java.clear()
        member.close()
        wait_until(lambda: len(group.python[0].assigned) == QUEUES, PATIENCE_SECONDS)
        load.end()

        wait_until(lambda: not set(load.sent) - group.consumed.keys(), PATIENCE_SECONDS)
        assert group.consumed.total() == len(group.consumed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
def test_nothing_is_lost_whoever_is_killed(broker: FaultyBroker, java_kit: GetKit, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    story = [f"seed {seed}"]
    with ExitStack() as stack:
        fronts = [FrontProcess(broker.dsn, tmp_path / f"front-{number}.log") for number in range(2)]
        for front in fronts:
            stack.callback(front.stop)
        group = Group(broker.dsn, fronts, [java_kit(NEW), java_kit(OLD)], chance)
        stack.callback(group.close)
        story += [group.join(), group.join()]
        load = Load(broker.dsn)
        stack.callback(load.end)
        for _ in range(ACTIONS):
            time.sleep(chance.uniform(0.5, 3))  # the load goes on
            story.append(_act(chance, group, fronts, broker))
        if not (group.java or group.python):
            story.append(group.join())
        load.end()
        logger.warning("\n".join(story))

        assert len(load.sent) > 500
        wait_until(lambda: not set(load.sent) - group.consumed.keys(), PATIENCE_SECONDS)
        twice = group.consumed.total() - len(group.consumed)
        logger.warning("%d sent, none lost, %d came again", len(load.sent), twice)
    for number in range(2):
        log = (tmp_path / f"front-{number}.log").read_text()
        assert "unforeseen" not in log, log


def _act(chance: random.Random, group: Group, fronts: list[FrontProcess], broker: FaultyBroker) -> str:
    members = len(group.java) + len(group.python)
    match chance.choices(("join", "leave", "kill", "front", "postgres", "serve"), (5, 3, 3, 2, 1, 1))[0]:
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
