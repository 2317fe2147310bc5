"""Workers in Python and of RocketMQ 5's SDKs pop in one group while workers, fronts and brokers are killed with -9."""

import logging
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import grpc
import psycopg
import pytest
from sqlalchemy import Connection, text

from mqdb.common.http_address import HttpAddress
from mqdb.grpc.wire import rocketmq_pb2 as pb
from mqdb_client import Admin
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.consumer_processes import ConsumerProcess
from tests.fixtures.faults import faulty_broker
from tests.fixtures.grpc_client import GrpcClient, subscription
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.sdk_programs import PROGRAMS
from tests.fixtures.serve import query

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
RENEWED_SECONDS = 2.0
MESSAGES = 400


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Crowd:
    """A front and workers, restarted after being killed, and the output of all of them."""

    def __init__(self, dsn: str) -> None:
        self.port = free_port()
        self._makers: dict[str, Callable[[], ConsumerProcess]] = {
            "front": lambda: ConsumerProcess(
                dsn, str(self.port), str(RENEWED_SECONDS), script=HERE / "grpc_front_process.py"
            ),
            "sdk 1": self._sdk,
            "sdk 2": self._sdk,
            "python": lambda: ConsumerProcess(
                f"broker-a={dsn}", str(RENEWED_SECONDS), script=HERE / "pop_worker_process.py"
            ),
        }
        self.living: dict[str, ConsumerProcess] = {}
        self._dead: list[ConsumerProcess] = []

    def add(self, language: str, home: Path) -> None:
        """Add a consumer that uses the SDK for a language. The SDK's logs go to `home`."""
        command, _ = PROGRAMS[language].build()
        words = [word.replace("{home}", str(home)) for word in command]
        program = ["env", f"HOME={home}", *words, "worker"]
        arguments = (f"127.0.0.1:{self.port}", "orders", "workers")
        self._makers[language] = lambda: ConsumerProcess(*arguments, program=program)

    def _sdk(self) -> ConsumerProcess:
        return ConsumerProcess(f"127.0.0.1:{self.port}", script=HERE / "sdk_worker_process.py")

    def start(self, name: str) -> None:
        process = self.living[name] = self._makers[name]()
        if name == "front":
            wait_until(lambda: "ready" in process.lines)

    def start_all(self) -> None:
        for name in self._makers:
            if name != "front":
                self.start(name)
        wait_until(lambda: all("ready" in each.lines for each in self.living.values()), seconds=60)

    def kill(self, name: str) -> None:
        process = self.living.pop(name)
        process.end(signal.SIGKILL)
        self._dead.append(process)

    def got(self) -> list[tuple[str, str]]:
        lines = [line.split() for each in (*self._dead, *self.living.values()) for line in list(each.lines)]
        return [(words[1], words[2]) for words in lines if words[0] == "got"]

    def close(self) -> None:
        for process in (*self._dead, *self.living.values()):
            process.close()


@pytest.fixture
def crowd(database: Database) -> Iterator[Crowd]:
    started = Crowd(database.dsn)
    yield started
    started.close()


def send(client: GrpcClient, body: str) -> None:
    """Send a message repeatedly until it is acknowledged."""
    while True:
        with suppress(grpc.RpcError):  # the front is being started anew
            if client.send("orders", body).status.code == pb.Code.OK:
                return
        time.sleep(0.1)


def add_languages(crowd: Crowd, home: Path) -> None:
    """Add consumers in Java and Go if they can be built here."""
    with skipped_if_missing():
        for language in ("java", "go"):
            crowd.add(language, home)


def begin(crowd: Crowd) -> GrpcClient:
    """Start everything, with the group at the beginning of its topic; returns a client that can send."""
    crowd.start("front")
    client = GrpcClient(HttpAddress("127.0.0.1", crowd.port), "sender")
    stream = client.telemetry()
    stream.ask(subscription("workers", orders="*"))
    stream.close()
    crowd.start_all()
    return client


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 10))])
def test_whoever_is_killed_no_message_is_lost(broker: Connection, crowd: Crowd, tmp_path: Path, run: int) -> None:
    """No message is lost, whichever process is killed. The first run leaves out Java and Go, which start slowly."""
    seed = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1_000_000) + run
    chance = random.Random(seed)
    topic(broker, queues=chance.choice([1, 4]))
    if run:
        add_languages(crowd, tmp_path)
    client = begin(crowd)
    names = [f"m{number}" for number in range(MESSAGES)]
    kills = Counter[str]()

    for number, name in enumerate(names):
        send(client, name)
        if number % 20 == 19:
            dispatch_all(broker)
            if chance.random() < 0.3:
                victim = chance.choice(list(crowd.living))
                crowd.kill(victim)
                crowd.start(victim)
                kills[victim] += 1
    dispatch_all(broker)
    client.close()

    in_flight = text("SELECT count(*) FROM mqdb.pop_batch")
    wait_until(lambda: {body for body, _ in crowd.got()} == set(names) and broker.scalar(in_flight) == 0, seconds=120)
    deliveries = Counter(crowd.got())
    # A send whose answer was lost with the front was repeated, and is stored twice: as often as the front was killed.
    twice = [each for each, times in deliveries.items() if times > 1]
    again = sum(attempt != "1" for _, attempt in deliveries)
    story = f"seed {seed}: kills {dict(kills)}, {MESSAGES} sent, {again} again after a kill, {len(twice)} twice, 0 lost"
    logger.warning(story)
    assert len(twice) <= kills["front"], f"{story}: delivered twice: {twice}"
    assert max(deliveries.values()) <= 2, story


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", range(10))
def test_through_outages_of_the_broker_no_message_is_lost(tmp_path: Path, run: int) -> None:
    """PostgreSQL and `mqdb serve` are killed too, and still no message is lost.

    Messages that were in flight when PostgreSQL was killed are delivered twice.
    """
    seed = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1_000_000) + run
    chance = random.Random(seed)
    names = [f"m{number}" for number in range(MESSAGES)]
    kills = Counter[str]()
    with faulty_broker(tmp_path) as broker, closing(Crowd(broker.dsn)) as crowd:
        broker.start_serving()
        add_languages(crowd, tmp_path)
        with Admin(broker.dsn) as admin:
            admin.topics.create("orders", queues=chance.choice([1, 4]))
        client = begin(crowd)
        for number, name in enumerate(names):
            send(client, name)
            if number % 40 == 39:
                what = chance.choice([*crowd.living, "serve", "serve", "postgres", "postgres"])
                kills[what] += 1
                if what == "serve":
                    broker.kill_serving(chance)
                    broker.start_serving()
                elif what == "postgres":
                    broker.kill_postgres(chance)
                    broker.server.restart()
                else:
                    crowd.kill(what)
                    crowd.start(what)
        client.close()
        wait_until(lambda: {body for body, _ in crowd.got()} == set(names) and none_in_flight(broker.dsn), seconds=120)
        deliveries = Counter(crowd.got())
        twice = sum(times > 1 for times in deliveries.values())
        again = sum(attempt != "1" for _, attempt in deliveries)
        story = f"seed {seed}: kills {dict(kills)}, {MESSAGES} sent, {again} again, {twice} twice, 0 lost"
        logger.warning(story)
        many = [each for each, times in deliveries.items() if times > 1 + kills["front"] + kills["postgres"]]
        assert many == [], story


def none_in_flight(dsn: str) -> bool:
    with suppress(psycopg.OperationalError):
        return query(dsn, "SELECT count(*) FROM mqdb.pop_batch") == [(0,)]
    return False
