"""Two brokers, each with its own PostgreSQL, of which one after the other is killed with -9 under load.

The body of each message is a unique number, so a message stored twice is noticed even if the copies have different ids.
Every run prints its seed, and what was sent and killed. A long run, with other seeds each time:

    MQDB_FAULT_RUNS=10 MQDB_FAULT_KILLS=12 pytest tests/acceptance/test_broker_faults.py

MQDB_FAULT_SEED is the seed of the first run; the moments of the kills depend on the machine as well.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import psutil
import psycopg
import pytest

from mqdb.common.unique_id import parse_unique_id
from mqdb.embedded import EmbeddedPostgres, temporary_home
from mqdb.errors import MqdbError, SendOutcomeUnknown
from mqdb.settings import load_settings
from mqdb.store import migrations
from mqdb_client import Message, Producer, SendResult
from tests.fixtures.busy_machine import Pulses
from tests.fixtures.clusters import give_cluster
from tests.fixtures.faults import kill_postmaster, kill_server
from tests.fixtures.log import create_topic
from tests.fixtures.processes import is_alive, wait_until
from tests.fixtures.producers import settled_outcome
from tests.fixtures.variants import usually

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "0"))
#: In each run, for each of the three kinds of load: each broker once, or twice.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "4" if RUNS else "2"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

#: A run goes on until then: with less it has tested nothing.
LEAST_ACKNOWLEDGED: Final = 2_000

TIMEOUT: Final = timedelta(seconds=1.5)

# By how much a send may end after its timeout. On an idle machine they are a second.
_TOLERATED_PULSES: Final = 200
# Between the moment in which a send is over and that in which its thread runs again.
_LATE_PULSES: Final = 20

# A recovery syncs the data directory first: Linux can do it at once, others file by file.
SETTINGS: Final = {"shared_buffers": "32MB"} | (
    {"recovery_init_sync_method": "syncfs"} if sys.platform == "linux" else {}
)

# Of the sends that begin while a broker is down.
_LEAST_SUCCESS: Final = 0.9

_THREADS: Final = 6
#: Async sends that may be under way at once.
_PERMITS: Final = 500

# What a busy machine may take for anything that is done in a moment.
_PATIENCE_SECONDS: Final = 60.0


# -- brokers that are killed --------------------------------------------------------------------


class Broker:
    """A broker with its own PostgreSQL and port, and the name by which the producer knows the broker."""

    def __init__(self, name: str, server: EmbeddedPostgres) -> None:
        self.name = name
        self.server = server

    def kill(self, chance: random.Random) -> None:
        """Kill all processes of PostgreSQL, or less often only its postmaster.

        Returns when all processes have exited.
        """
        processes = psutil.Process(self.server.pid).children(recursive=True)
        chance.choice([kill_server, kill_server, kill_postmaster])(self.server)
        # A backend notices that its postmaster is gone when it has to wait for a statement: on a busy machine late.
        wait_until(lambda: not any(is_alive(process.pid) for process in processes), _PATIENCE_SECONDS)

    def up_since(self) -> float:
        """The time.monotonic() at which the broker began to accept connections, which is before its restart returns."""
        # PostgreSQL writes its pid file for the last time in the moment before.
        written_at = (self.server.home / "data" / "postmaster.pid").stat().st_mtime
        return time.monotonic() - (time.time() - written_at)

    def stored(self, topic: str) -> list["Stored"]:
        """All messages of a topic in the log."""
        statement = """
            SELECT convert_from(body, 'UTF8')::int, msg_id, log_pos, queue_id
            FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id) WHERE topic = %s"""
        with psycopg.connect(self.server.dsn) as connection:
            return [Stored(self.name, *row) for row in connection.execute(statement, [topic])]


class Stored(NamedTuple):
    """A message as stored in the log."""

    broker_name: str
    number: int
    unique_id: UUID
    log_pos: int
    queue_id: int


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        brokers = []
        for name in ("broker-a", "broker-b"):
            home = stack.enter_context(temporary_home())
            give_cluster(home, is_migrated=False)
            server = EmbeddedPostgres(home, durable=True, settings=SETTINGS)
            brokers.append(Broker(name, stack.enter_context(server)))
            migrations.upgrade(server.dsn, broker_name=name)
        yield brokers


@dataclass(frozen=True)
class Outage:
    """A broker was down between two moments of time.monotonic."""

    broker: Broker
    killed_at: float
    up_at: float


# -- load ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """A finished send, with the numbers of its messages; times are those of time.monotonic."""

    numbers: Sequence[int]
    began: float
    ended: float
    results: Sequence[SendResult]
    error: BaseException | None

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Load:
    """Threads that send without a pause while the `with` block runs."""

    def __init__(self, producer: Producer, topic: str, send: "Callable[[Load], None]") -> None:
        self.producer = producer
        self.sends: list[Send] = []
        #: The messages of each broker.
        self.acknowledged: Counter[str] = Counter()
        #: How many messages there are.
        self.count = 0
        self._topic = topic
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(send,)) for _ in range(_THREADS)]

    def _run(self, send: "Callable[[Load], None]") -> None:
        while not self._stop.is_set():
            send(self)

    def messages(self, count: int) -> tuple[Sequence[int], list[Message]]:
        """New messages, and their numbers."""
        with self._guard:
            numbers = range(self.count, self.count + count)
            self.count += count
        return numbers, [Message(self._topic, str(number)) for number in numbers]

    def ended(self, send: Send) -> None:
        with self._guard:
            self.sends.append(send)
            self.acknowledged.update(result.queue.broker_name for result in send.results)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def send_one(load: Load) -> None:
    numbers, [message] = load.messages(1)
    _send(load, numbers, lambda: [load.producer.send(message)])


def send_batch(load: Load) -> None:
    numbers, messages = load.messages(20)
    _send(load, numbers, lambda: load.producer.send_batch(messages))


def _send(load: Load, numbers: Sequence[int], work: Callable[[], list[SendResult]]) -> None:
    began = time.monotonic()
    results, error = [], None
    try:
        results = work()
    except MqdbError as raised:
        error = raised
    load.ended(Send(numbers, began, time.monotonic(), results, error))


def send_async(load: Load) -> None:
    numbers, [message] = load.messages(1)
    began = time.monotonic()

    def ended(future: "Future[SendResult]") -> None:
        error = future.exception()
        results = [] if error else [future.result()]
        load.ended(Send(numbers, began, time.monotonic(), results, error))

    try:
        load.producer.send_async(message, callback=ended)
    except MqdbError as error:
        load.ended(Send(numbers, began, time.monotonic(), [], error))


# -- the promises -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * KILLS)
@pytest.mark.parametrize("run", range(RUNS or 1))
@pytest.mark.parametrize("send", usually(send_one, of=[send_one, send_async, send_batch]))
def test_a_broker_killed_under_load_loses_and_doubles_nothing(
    brokers: list[Broker], run: int, send: Callable[[Load], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = FIRST_SEED + run
    topic = f"{send.__name__}-{seed}"
    dsn = ";".join(f"{broker.name}={broker.server.dsn}" for broker in brokers)
    for broker in brokers:
        with psycopg.connect(broker.server.dsn, autocommit=True) as connection:
            create_topic(connection, topic, 4)

    settings = load_settings(dsn=dsn, send_message_timeout=TIMEOUT)
    with Producer("senders", settings=settings, back_pressure_for_async_send_num=_PERMITS) as producer:
        with Pulses() as pulses:
            with Load(producer, topic, send) as load:
                outages = kill_again_and_again(random.Random(seed), brokers, load)
                wait_until(lambda: load.acknowledged.total() >= LEAST_ACKNOWLEDGED, _PATIENCE_SECONDS)
            wait_until(lambda: sum(len(each.numbers) for each in load.sends) == load.count)
        outcomes = {
            message_id: settled_outcome(producer, message_id)
            for each in load.sends
            if isinstance(each.error, SendOutcomeUnknown)
            for message_id in each.error.message_ids
        }
    stored = [message for broker in brokers for message in broker.stored(topic)]

    with capsys.disabled():
        print(f"\nseed {seed}, {send.__name__}: {report(load.sends, outages, outcomes)}")  # noqa: T201
    check_storage(load.sends, outcomes, stored)
    check_times(load.sends, outages, pulses, _PERMITS if send is send_async else _THREADS)
    if send is not send_async:
        check_successes(load.sends, pulses)


def kill_again_and_again(chance: random.Random, brokers: list[Broker], load: Load) -> list[Outage]:
    """Kill one broker after another at random moments, and keep each down for a random time."""
    outages = []
    turn = chance.randrange(2)
    for number in range(KILLS):
        broker = brokers[(turn + number) % 2]
        for each in brokers:  # one is down at a time
            wait_for_use(load, each, 20)
        # And some more, so that the kill meets any moment of its work.
        wait_for_use(load, broker, chance.randrange(1, 400))
        broker.kill(chance)
        killed_at = time.monotonic()
        is_long = chance.random() < 0.25
        seconds = chance.uniform(1.0, 1.3) * TIMEOUT.total_seconds() if is_long else chance.uniform(0, 0.3)
        threading.Event().wait(seconds)
        broker.server.restart()
        outages.append(Outage(broker, killed_at, broker.up_since()))
    for broker in brokers:
        wait_for_use(load, broker, 20)
    return outages


def wait_for_use(load: Load, broker: Broker, messages: int) -> None:
    """Wait until the broker has acknowledged `messages` more messages."""
    least = load.acknowledged[broker.name] + messages
    wait_until(lambda: load.acknowledged[broker.name] >= least, _PATIENCE_SECONDS)


def check_storage(sends: list[Send], outcomes: dict[str, SendResult | None], stored: list[Stored]) -> None:
    """The brokers hold each message exactly as the producer reported."""
    assert [number for number, count in Counter(each.number for each in stored).items() if count > 1] == []
    places = {each.number: each for each in stored}
    for send in sends:
        found = [number for number in send.numbers if number in places]
        if isinstance(send.error, SendOutcomeUnknown):
            assert len(found) in (0, len(send.numbers)), "a batch is torn"
            told = [outcomes[message_id] for message_id in send.error.message_ids]
            assert [result is not None for result in told] == [bool(found)] * len(told)
            results = [result for result in told if result is not None]
        else:
            assert len(found) == (0 if send.error else len(send.numbers)), send
            results = list(send.results)
        for number, result in zip(found, results, strict=True):
            assert place_of(result, number) == places[number]


def place_of(result: SendResult, number: int) -> Stored:
    """The place of a message according to a result."""
    queue = result.queue
    return Stored(queue.broker_name, number, parse_unique_id(result.message_id), result.log_pos, queue.queue_id)


def check_times(sends: list[Send], outages: list[Outage], pulses: Pulses, under_way: int) -> None:
    """Sends end in time, and avoid the broker that is down.

    As many sends as are under way at once may fail when the broker dies, and as many when it accepts connections again.
    """
    assert late(sends, pulses, _TOLERATED_PULSES) == []
    all_begun = [send for outage in outages for send in begun_in(outage, sends)]
    assert sum(bool(send.results) for send in all_begun) >= _LEAST_SUCCESS * len(all_begun)
    for outage in outages:
        begun = begun_in(outage, sends)
        brokers = [send.results[0].queue.broker_name for send in begun if send.results]
        assert len(begun) - len(brokers) <= max((1 - _LEAST_SUCCESS) * len(begun), under_way)
        assert brokers.count(outage.broker.name) <= 2 * under_way


def check_successes(sends: list[Send], pulses: Pulses) -> None:
    """A successful send succeeds within its timeout.

    No statement begins after the timeout, and a running statement is then cancelled. But a send that finishes in time
    is a success however late its thread reports it, as in RocketMQ: on a busy machine the thread may have to wait for a
    core and for the interpreter. So the test counts how often another thread of the process ran after the timeout. No
    caller waits for an async send: such a send may be in a statement with another send whose timeout is later.
    """
    assert late([send for send in sends if send.results], pulses, _LATE_PULSES) == []


def late(sends: list[Send], pulses: Pulses, tolerated: int) -> list[tuple[int, Send]]:
    """The sends that ended more than `tolerated` pulses after their timeout, each with its pulses."""
    seconds = TIMEOUT.total_seconds()
    found = [(pulses.between(send.began + seconds, send.ended), send) for send in sends]
    return [each for each in found if each[0] > tolerated]


def begun_in(outage: Outage, sends: list[Send]) -> list[Send]:
    """The sends that began while the broker was down."""
    return [send for send in sends if outage.killed_at <= send.began < outage.up_at]


def report(sends: list[Send], outages: list[Outage], outcomes: dict[str, SendResult | None]) -> str:
    """A summary of the run in words."""
    acknowledged = sum(len(send.results) for send in sends)
    errors = Counter(type(send.error).__name__ for send in sends if send.error)
    begun = [send for outage in outages for send in begun_in(outage, sends)]
    past = [send for send in begun if send.results]
    found = sum(result is not None for result in outcomes.values())
    return (
        f"{len(outages)} kills, {acknowledged:,} messages acknowledged (at least {LEAST_ACKNOWLEDGED:,}); "
        f"errors: {dict(errors)}; {len(outcomes)} with an open outcome, of them {found} stored; "
        f"while a broker was down {len(begun):,} sends began and {len(past):,} succeeded, "
        f"the longest in {max(send.seconds for send in past):.2f} s; the longest of all: "
        f"{max(send.seconds for send in sends):.2f} s"
    )
