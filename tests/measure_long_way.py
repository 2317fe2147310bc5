"""Figures of clients and `mqdb serve` with a slow connection to the database: the table in docs/long-way.md.

    .venv/bin/python -m tests.measure_long_way [ROUND TRIP IN MS ...]       by default 0 40 100

Everything runs on this machine: a PostgreSQL without fsync, and a proxy that delays each direction by half a round
trip. Each figure is from one run; repeat it on a quiet machine before you rely on it.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy import text

from benchmarks.bench import message_sample
from mqdb.broker.topics import topics as admin
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import TopicConfig
from mqdb.store import migrations
from mqdb.store.engine import create_engine, driver
from mqdb_client import ConsumeConcurrentlyStatus, ConsumeFromWhere, Message, Producer, PushConsumer
from tests.fixtures import delay, timers
from tests.fixtures.postgres import Database, new_database, owner_dsn, server_with_owner
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.serve import ServeProcess, leader_pid

QUEUES = 4
BACKLOG = 20_000
DUE = 10_000


def main(round_trips: list[int]) -> None:
    figures: dict[str, list[str]] = {}
    with server_with_owner() as server:
        for milliseconds in round_trips:
            with (
                new_database(server) as database,
                Proxy(owner_dsn(server, database.name), round_trip=timedelta(milliseconds=milliseconds)) as way,
                tempfile.TemporaryDirectory() as logs,
            ):
                for name, figure in measure(database, way.dsn, Path(logs)):
                    figures.setdefault(name, []).append(figure)
                    say(f"{milliseconds} ms: {name}: {figure}")
    say(f"\n| | {' | '.join(f'{each} ms' for each in round_trips)} |")
    say(f"|---|{'---:|' * len(round_trips)}")
    for name, values in figures.items():
        say(f"| {name} | {' | '.join(values)} |")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measure(database: Database, far: str, logs: Path) -> Iterator[tuple[str, str]]:
    yield "`mqdb migrate`", seconds(lambda: migrations.upgrade(far))
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        routes = [admin.create_topic(connection, TopicConfig(name, QUEUES, QUEUES)) for name in ("orders", "backlog")]
        message_sample.fill(driver(connection), routes[1].queue_keys, BACKLOG)
    engine.dispose()
    with serving(far, logs / "first.log") as first, serving(far, logs / "second.log") as second:
        yield from producing(far)
        yield from consuming(far)
        yield from delivering(database)
        yield "another `mqdb serve` leads after kill -9", seconds(lambda: take_over(database.dsn, first, second))


@contextmanager
def serving(dsn: str, log: Path) -> Iterator[ServeProcess]:
    process = ServeProcess(log, dsn=dsn)
    try:
        yield process
    finally:
        process.clean_up()


def producing(dsn: str) -> Iterator[tuple[str, str]]:
    with Producer("senders", dsn) as producer:
        producer.send(Message("orders", "first"))
        took = [elapsed(lambda: producer.send(Message("orders", "x"))) for _ in range(20)]
        yield "a send", f"{statistics.median(took) * 1000:.0f} ms"
        batch = [Message("orders", "x") for _ in range(1_000)]
        yield "a batch of 1,000", seconds(lambda: producer.send_batch(batch))
        with ThreadPoolExecutor(64) as pool:
            sent = 64 * 20
            took_all = elapsed(lambda: list(pool.map(lambda _: producer.send(Message("orders", "x")), range(sent))))
        yield "sends of 64 threads", f"{sent / took_all:,.0f}/s"
        sent = 10_000
        futures = elapsed(
            lambda: [each.result(60) for each in [producer.send_async(Message("orders", "x")) for _ in range(sent)]]
        )
        yield "async sends", f"{sent / futures:,.0f}/s"


def consuming(dsn: str) -> Iterator[tuple[str, str]]:
    arrived: dict[str, float] = {}
    guard = threading.Lock()

    def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        with guard:
            arrived.update((message.body.decode(), time.monotonic()) for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with consumer(dsn, "readers", "orders", listen, ConsumeFromWhere.LAST_OFFSET), Producer("tellers", dsn) as producer:
        wait_until(lambda: told(producer, arrived, "first"))
        late = []
        for number in range(20):
            begin = time.monotonic()
            producer.send(Message("orders", f"probe {number}"))
            wait_until(lambda number=number: f"probe {number}" in arrived)  # type: ignore[misc]
            late.append(arrived[f"probe {number}"] - begin)
        yield "from `send` to the listener", f"{statistics.median(late) * 1000:.0f} ms"
    for size in (32, 1_024):
        yield f"a consumer reads a backlog, `pull_batch_size={size}`", f"{drained(dsn, size):,.0f}/s"


def drained(dsn: str, pull_batch_size: int) -> float:
    """The number of backlog messages that a consumer reads in a second."""
    counts: list[int] = []

    def drain(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        counts.append(len(messages))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    group, where = f"drainers-{pull_batch_size}", ConsumeFromWhere.FIRST_OFFSET
    with consumer(dsn, group, "backlog", drain, where, pull_batch_size):
        wait_until(lambda: counts)
        begin, before = time.monotonic(), sum(counts)
        wait_until(lambda: sum(counts) >= BACKLOG, 300)
        return (BACKLOG - before) / (time.monotonic() - begin)


def told(producer: Producer, arrived: dict[str, float], body: str) -> bool:
    producer.send(Message("orders", body))
    return body in arrived


def delivering(database: Database) -> Iterator[tuple[str, str]]:
    """Time the deliveries of due messages, from their append on; only the services are far from the database."""
    bodies = [str(number) for number in range(DUE)]
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        connection.execute(text("UPDATE mqdb.delay_level SET delay = '1 millisecond'"))
        for name, send in (
            ("timers", lambda: timers.timer(connection, -timedelta(seconds=1), *bodies, dispatched=False)),
            ("messages of a delay level", lambda: delay.delay(connection, 1, *bodies, dispatched=False)),
        ):
            before = count_of(database)
            send()
            took = elapsed(lambda before=before: wait_until(lambda: count_of(database) >= before + DUE, 120))  # type: ignore[misc]
            yield f"{DUE:,} {name} that are due", f"{took:.1f} s"
    engine.dispose()


def count_of(database: Database) -> int:
    [(count,)] = database.rows(
        """SELECT count(*) FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
           WHERE topic = 'orders'"""
    )
    return int(count)


@contextmanager
def consumer(
    dsn: str,
    group: str,
    topic: str,
    listener: Callable[[list[ReceivedMessage]], ConsumeConcurrentlyStatus],
    where: ConsumeFromWhere,
    pull_batch_size: int = 32,
) -> Iterator[None]:
    started = PushConsumer(group, dsn, consume_from_where=where, pull_batch_size=pull_batch_size)
    started.subscribe(topic)
    started.register_listener(listener)
    started.start()
    try:
        yield
    finally:
        started.shutdown()


def take_over(dsn: str, *processes: ServeProcess) -> None:
    leader = leader_pid(dsn)
    next(each for each in processes if each.pid == leader).kill()
    wait_until(lambda: leader_pid(dsn) != leader)


def elapsed(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def seconds(work: Callable[[], object]) -> str:
    return f"{elapsed(work):.1f} s"


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [0, 40, 100])
