"""Many consumers of RocketMQ 5's protocol on one queue: SDK members in three languages, and bare calls."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.consumer_processes import ConsumerProcess
from tests.fixtures.grpc_client import GrpcClient, GrpcFronts, subscription, texts
from tests.fixtures.processes import wait_until
from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.sdk_programs import PROGRAMS

HERE = Path(__file__).parent
CONSUMERS = 32
OF_AN_SDK = 2
WAVES = 20
WAVE = 64


class BareConsumers:
    """Consumers, one thread each, that receive and acknowledge one message at a time."""

    def __init__(self, fronts: GrpcFronts, names: Sequence[str]) -> None:
        #: What each has got.
        self.got: dict[str, list[str]] = {name: [] for name in names}
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(len(names))
        clients = {name: fronts.connect(name) for name in names}
        self._streams = [client.telemetry() for client in clients.values()]
        for stream in self._streams:
            stream.ask(subscription("workers", orders="*"))
        self._ends = [self._pool.submit(self._consume, name, client) for name, client in clients.items()]

    def _consume(self, name: str, client: GrpcClient) -> None:
        while not self._is_over.is_set():
            messages = client.receive("workers", "orders", most=1, auto_renew=True, poll=5)
            self.got[name] += texts(messages)
            if messages:
                client.ack("workers", "orders", *messages)

    def close(self) -> None:
        """Wait for the last receives. Raises the error of a consumer that failed."""
        self._is_over.set()
        for end in self._ends:
            end.result()
        self._pool.shutdown()
        for stream in self._streams:
            stream.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_of_32_consumers_on_one_queue_gets_a_share(
    broker: Connection, grpc_fronts: GrpcFronts, tmp_path: Path
) -> None:
    topic(broker, "orders", 1)
    first = grpc_fronts.connect("first")
    stream = first.telemetry()
    stream.ask(subscription("workers", orders="*"))
    endpoint = str(grpc_fronts.front.address)
    with ExitStack() as stack:
        processes: list[ConsumerProcess] = []
        with skipped_if_missing():
            for language in ("java", "go"):
                command, _ = PROGRAMS[language].build()
                words = [word.replace("{home}", str(tmp_path)) for word in command]
                program = ["env", f"HOME={tmp_path}", *words, "worker"]
                for _ in range(OF_AN_SDK):
                    processes.append(ConsumerProcess(endpoint, "orders", "workers", program=program))
                    stack.callback(processes[-1].close)
        for _ in range(OF_AN_SDK):
            processes.append(ConsumerProcess(endpoint, script=HERE / "sdk_worker_process.py"))
            stack.callback(processes[-1].close)
        bare = BareConsumers(grpc_fronts, [f"bare {number}" for number in range(CONSUMERS - len(processes))])
        stack.callback(bare.close)
        wait_until(lambda: all("ready" in each.lines for each in processes), 120)
        wait_until(lambda: grpc_fronts.front.traffic.waiting == CONSUMERS, 60)
        sent = [f"m{number}" for number in range(WAVES * WAVE)]

        for wave in range(WAVES):
            for body in sent[wave * WAVE : (wave + 1) * WAVE]:
                first.send("orders", body)
            dispatch_all(broker)

        def shares() -> list[list[str]]:
            of_sdks = [[body.split()[0] for body in each.bodies] for each in processes]
            return [*of_sdks, *map(list, bare.got.values())]

        wait_until(lambda: sum(map(len, shares())) >= len(sent), 120)
        wait_until(lambda: broker.exec_driver_sql("SELECT count(*) FROM mqdb.pop_batch").scalar_one() == 0, 60)
        found = shares()
    got = Counter(body for share in found for body in share)
    assert sorted(got) == sorted(sent)
    assert [body for body, times in got.items() if times > 1] == []
    assert [len(share) for share in found if not share] == []
