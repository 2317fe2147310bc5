"""Exactly-once members and PostgreSQL are killed with -9 under load, while listeners fail and members fight for queues.

The ledger counts the committed transactions that consumed each message, and each transaction forwards its messages to
another topic. Every run prints its seed and its faults. The usual run kills each once; a long run, with other seeds
each time:

    MQDB_FAULT_RUNS=5 MQDB_FAULT_KILLS=12 pytest tests/acceptance/test_exactly_once_faults.py
"""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Final, Self

import psycopg
import pytest

from mqdb.common.topic import dlq_topic
from mqdb.errors import MqdbError
from mqdb_client import Message, Producer
from tests.fixtures import warm_process
from tests.fixtures.faults import FaultyBroker, faulty_broker
from tests.fixtures.log import create_topic
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import query

SCRIPT: Final = Path(__file__).with_name("transactional_process.py")

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "0"))
#: Of members, and a third as many of PostgreSQL, at least one.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "3" if RUNS else "1"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

#: A run goes on until then: with less it has tested nothing.
LEAST_CONSUMED: Final = 300 * KILLS
#: Between two kills so many are consumed, at most.
_BETWEEN: Final = 300 if RUNS else 60

_QUEUES: Final = 8
_MEMBERS: Final = 3
_BATCH: Final = 20
_PAUSE_SECONDS: Final = 0.02 if RUNS else 0.1

# What a busy machine may take for anything that is done in a moment.
_PATIENCE_SECONDS: Final = 60.0


class MemberProcess:
    """A running transactional_process.py that has joined its group."""

    def __init__(self, log: IO[bytes], *arguments: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, str(SCRIPT), *arguments]
        self.process = warm_process.start(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", "it has not joined"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask the process to exit, as an operator would; returns its exit code."""
        self.process.terminate()
        return self.process.wait(_PATIENCE_SECONDS)

    def clean_up(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Members:
    """The members of the group, kept at their full number."""

    def __init__(self, log_file: Path, *arguments: str) -> None:
        self._log = log_file.open("wb")
        self._arguments = arguments
        self._started: list[MemberProcess] = []
        self.members: list[MemberProcess] = []

    def join(self) -> None:
        member = MemberProcess(self._log, *self._arguments)
        self._started.append(member)
        self.members.append(member)

    def kill(self, chance: random.Random) -> None:
        victim = chance.choice(self.members)
        self.members.remove(victim)
        victim.kill()

    def end(self) -> list[int]:
        return [member.end() for member in self.members]

    def clean_up(self) -> None:
        for member in self._started:
            member.clean_up()
        self._log.close()


class Load:
    """Sends batches while the `with` block runs. An unacknowledged message may or may not be stored."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: set[str] = set()

    def _run(self) -> None:
        for first in count(step=_BATCH):
            messages = [Message("orders", str(number)) for number in range(first, first + _BATCH)]
            with suppress(MqdbError):
                self.acknowledged |= {result.message_id for result in self._producer.send_batch(messages)}
            if self._stop.wait(_PAUSE_SECONDS):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FaultyBroker]:
    """A broker with a broker process, the topics, and a ledger."""
    with faulty_broker(tmp_path) as broker:
        with psycopg.connect(broker.dsn, autocommit=True) as connection:
            create_topic(connection, "orders", _QUEUES)
            create_topic(connection, "invoices", _QUEUES)
            connection.execute("CREATE TABLE ledger (message_id text PRIMARY KEY, body text, times integer DEFAULT 1)")
        broker.start_serving()
        yield broker


def consumed(broker: FaultyBroker) -> int:
    [(messages,)] = query(broker.dsn, "SELECT count(*) FROM ledger")
    return int(messages)


def wait_for_progress(broker: FaultyBroker, messages: int) -> None:
    """Wait until `messages` more messages are consumed."""
    least = consumed(broker) + messages
    wait_until(lambda: consumed(broker) >= least, _PATIENCE_SECONDS)


def kill_again_and_again(chance: random.Random, broker: FaultyBroker, members: Members) -> dict[str, int]:
    """Kill members and PostgreSQL at random moments; returns how often each was killed."""
    victims = ["member"] * KILLS + ["PostgreSQL"] * max(KILLS // 3, 1)
    chance.shuffle(victims)
    for victim in victims:
        wait_for_progress(broker, chance.randrange(1, _BETWEEN))
        if victim == "member":
            members.kill(chance)
            if chance.random() < 0.5:  # nobody is in its place for a while
                wait_for_progress(broker, chance.randrange(1, _BETWEEN))
            members.join()
        else:
            broker.kill_postgres(chance)
            broker.server.restart()
    wait_for_progress(broker, _BETWEEN)
    return {victim: victims.count(victim) for victim in sorted(set(victims))}


def left(broker: FaultyBroker) -> int:
    """Messages that are stored but not consumed."""
    statement = """
        SELECT count(*) FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
        WHERE topic = 'orders' AND upper(replace(msg_id::text, '-', '')) NOT IN (SELECT message_id FROM ledger)"""
    [(messages,)] = query(broker.dsn, statement)
    return int(messages)


def wait_until_nothing_is_left(broker: FaultyBroker) -> None:
    """Wait until every message is consumed.

    The total time depends on the machine, so only some progress must happen in time.
    """
    while before := left(broker):
        wait_until(partial(is_less_left, broker, before), _PATIENCE_SECONDS)


def is_less_left(broker: FaultyBroker, before: int) -> bool:
    return left(broker) < before


@pytest.mark.long  # the usual run has an exactly-once group in test_consumer_faults
@pytest.mark.slow
@pytest.mark.timeout(300 + 40 * KILLS)
@pytest.mark.parametrize("run", range(RUNS or 1))
@pytest.mark.parametrize(
    ("kind", "sharing", "mode"),
    [
        ("threads", "GREEDY", "CONCURRENT"),
        ("threads", "SHARED", "CONCURRENT"),
        ("threads", "SHARED", "ORDERLY"),
        ("asyncio", "GREEDY", "CONCURRENT"),
        ("asyncio", "SHARED", "ORDERLY"),
    ],
)
def test_each_message_is_consumed_once_and_sent_on_once(
    broker: FaultyBroker,
    tmp_path: Path,
    run: int,
    kind: str,
    sharing: str,
    mode: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = FIRST_SEED + run
    chance = random.Random(seed)
    with ExitStack() as stack:
        members = Members(tmp_path / "members.log", broker.dsn, kind, sharing, mode, "10")
        stack.callback(members.clean_up)
        for _ in range(_MEMBERS):
            members.join()
        producer = stack.enter_context(Producer("senders", broker.dsn))
        with Load(producer) as load:
            killed = kill_again_and_again(chance, broker, members)
            wait_until(lambda: consumed(broker) >= LEAST_CONSUMED, _PATIENCE_SECONDS)
        wait_until_nothing_is_left(broker)
        assert set(members.end()) == {0}

    times = dict(query(broker.dsn, "SELECT times, count(*) FROM ledger GROUP BY times"))
    epochs = query(broker.dsn, "SELECT sum(epoch) FROM mqdb.consumer_offset")[0][0]
    with capsys.disabled():
        print(  # noqa: T201
            f"\nseed {seed}, {kind} {sharing} {mode}: killed {killed}; {len(load.acknowledged):,} messages "
            f"acknowledged, {sum(times.values()):,} consumed (at least {LEAST_CONSUMED:,}); "
            f"queues have changed hands {epochs} times"
        )
    assert set(times) == {1}
    assert load.acknowledged <= {row[0] for row in query(broker.dsn, "SELECT message_id FROM ledger")}
    sent_on = "SELECT text FROM mqdb.message WHERE topic = 'invoices' ORDER BY text"
    assert query(broker.dsn, sent_on) == query(broker.dsn, "SELECT body FROM ledger ORDER BY body")
    assert query(broker.dsn, "SELECT text FROM mqdb.message WHERE topic = %s", dlq_topic("readers")) == []
