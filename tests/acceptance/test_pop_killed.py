"""Popping workers are killed with -9 at random: no message is lost, and none is delivered to two workers at once."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumer_processes import ConsumerProcess
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

SCRIPT = Path(__file__).parent / "pop_worker_process.py"
INVISIBLE_SECONDS = 1.0
MESSAGES = 1_200
WORKERS = 3


class Workers:
    """Processes that are restarted after being killed, and the output of all of them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._living: list[ConsumerProcess] = []
        self._dead: list[ConsumerProcess] = []
        for _ in range(WORKERS):
            self.start()

    def start(self) -> None:
        self._living.append(ConsumerProcess(self._dsn, str(INVISIBLE_SECONDS), script=SCRIPT))

    def kill(self, number: int) -> None:
        worker = self._living.pop(number)
        worker.end(signal.SIGKILL)
        self._dead.append(worker)

    def said(self, word: str) -> list[list[str]]:
        lines = [line.split() for worker in (*self._dead, *self._living) for line in list(worker.lines)]
        return [rest for first, *rest in lines if first == word]

    def close(self) -> None:
        for worker in (*self._dead, *self._living):
            worker.close()


@pytest.fixture
def workers(database: Database) -> Iterator[Workers]:
    started = Workers(f"broker-a={database.dsn}")
    yield started
    started.close()


def in_flight(broker: Connection) -> int:
    return broker.scalar(text("SELECT coalesce(sum(bit_count(in_flight::bit(64))), 0) FROM mqdb.pop_batch")) or 0


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("run", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 10))])
def test_whatever_is_killed_no_message_is_lost(broker: Connection, workers: Workers, run: int) -> None:
    seed = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1_000_000) + run
    chance = random.Random(seed)
    route = topic(broker, queues=chance.choice([1, 3]))
    names = [f"m{number}" for number in range(MESSAGES)]
    kills = 0
    for sent in range(0, MESSAGES, 100):
        append(broker, route, *names[sent : sent + 100], queue_id=chance.randrange(len(route.queue_keys)))
        dispatch_all(broker)
        time.sleep(chance.uniform(0, 0.2))  # the moment of the kill is what chance decides
        if chance.random() < 0.6:
            workers.kill(chance.randrange(WORKERS))
            workers.start()
            kills += 1

    wait_until(lambda: {body for body, *_ in workers.said("got")} == set(names) and in_flight(broker) == 0, seconds=60)

    deliveries = Counter((body, attempt) for body, attempt in workers.said("got"))
    done = Counter(body for (body,) in workers.said("done"))
    story = f"seed {seed}: {kills} kills, {len(deliveries)} deliveries of {MESSAGES}"
    assert max(deliveries.values()) == 1, f"{story}: two workers had one delivery: {deliveries.most_common(3)}"
    assert max(done.values()) == 1, f"{story}: acknowledged twice: {done.most_common(3)}"
    # Whose ack was not heard of was acknowledged by a worker that was killed before it could say so.
    assert len(names) - len(done) <= 8 * kills, story
