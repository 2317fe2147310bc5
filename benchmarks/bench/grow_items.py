"""The items of `do.py bench grow`: the call, its number of repetitions, and its duration."""

import base64
import http.client
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from secrets import token_urlsafe
from typing import Any, Final
from uuid import UUID

import psycopg
from sqlalchemy import Connection

from benchmarks.bench import message_sample
from benchmarks.bench.clients import settings_for
from benchmarks.bench.grow_log import GrowingLog
from benchmarks.bench.testbed import PREFIX
from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON
from mqdb.broker.consumers.offsets import search_offsets
from mqdb.broker.consumers.pull import PullRequest, pull
from mqdb.broker.dispatch import dispatch
from mqdb.common.http_address import HttpAddress
from mqdb.common.message import MessageQueue
from mqdb.dashboard.dashboard import Dashboard
from mqdb.errors import IllegalState
from mqdb.server import Server
from mqdb.service.retention import RetentionRules, expired
from mqdb.store.dispatch import checkpoints
from mqdb.store.dispatch.queues import ends
from mqdb.store.engine import create_engine
from mqdb.store.segments import partitions, segments
from mqdb.web.web_server import serve_web
from mqdb_client import Admin, BrokerAdmin, Producer

_ID_BEHIND: Final = "SELECT msg_id FROM mqdb.commit_log WHERE log_pos > %s ORDER BY log_pos LIMIT 1"

_BATCH: Final = 1_000
_SEND_BATCH: Final = 100
_LOOK_SECONDS: Final = 0.002
_START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Item:
    """An action that is called this many times in each round. `call` returns the seconds that count."""

    name: str
    label: str
    call: Callable[[], float]
    calls: int = 1
    most_rounds: int = 1_000
    warm_up: bool = True


def items(log: GrowingLog, stack: ExitStack) -> Iterator[Item]:
    """All items, for a log of its present size. The stack closes the connections that the items hold open."""
    settings = settings_for(log.testbed.broker)
    producer = stack.enter_context(Producer(f"{PREFIX}grower", settings=settings))
    admin = stack.enter_context(Admin(settings=settings)).on(log.testbed.broker.name)
    topic, randomly = log.topics[0].name, random.Random(1)
    one = message_sample.message(topic, 0)
    many = [message_sample.message(topic, number) for number in range(_SEND_BATCH)]
    yield Item("send", "Producer.send", _timed(lambda: producer.send(one)), 100)
    yield Item("send-100", f"Producer.send_batch of {_SEND_BATCH}", _timed(lambda: producer.send_batch(many)), 20)
    yield Item("dispatch", f"dispatch of {_BATCH:,} messages", partial(_dispatch, log), 5)
    yield Item("dispatch-idle", "dispatch without work", _timed(lambda: dispatch(log.testbed.connection)), 100)
    yield Item("index", f"key index of {_BATCH:,} messages", partial(_index, log), 5)
    yield from _pulls(log, stack)
    yield Item("time", f"offsets of a time, {len(log.topics[0].queue_keys)} queues", _search(log), 20)
    yield Item("key", "messages with a key", partial(_find_key, log, admin, randomly), 20)
    yield Item("id", "messages with a unique id", partial(_find_id, admin, iter(_ids(log, randomly))), 20)
    yield Item("groups", f"list of {len(log.groups)} groups with their lag", _timed(admin.groups.list), 5)
    yield Item("doctor", "all checks", _timed(admin.doctor.examine), 3)
    yield from _pages(log, stack)
    yield Item("serve", "start of the services until a message is dispatched", partial(_serve, log), 1, 3, False)
    yield Item("adopt", "comparison after a restore", partial(_adopt, log), 1, 3, False)
    yield Item("retention", "retention of one segment", partial(_drop_oldest, log), 1, 2, False)


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def call() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return call


def _dispatch(log: GrowingLog) -> float:
    log.append(_BATCH)
    return _timed(log.testbed.dispatch_all)()


def _index(log: GrowingLog) -> float:
    log.append(_BATCH)
    log.testbed.dispatch_all()
    return _timed(log.index_all)()


# -- pulls and times ------------------------------------------------------------------------------


def _pulls(log: GrowingLog, stack: ExitStack) -> Iterator[Item]:
    """Pulls by sessions like those of consumers."""
    topic, name = log.topics[0], log.testbed.broker.name
    log.testbed.dispatch_all()
    found = ends(log.testbed.connection, topic.queue_keys)

    def requests(place: Callable[[Any], int]) -> list[PullRequest]:
        return [
            PullRequest(MessageQueue(topic.name, name, number), key, place(found[key]))
            for number, key in enumerate(topic.queue_keys)
        ]

    first = requests(lambda end: end.min_offset)
    last = requests(lambda end: max(end.max_offset - 32, end.min_offset))

    def reader(asked: Sequence[PullRequest]) -> Callable[[], float]:
        """Pulls the same messages repeatedly, with the segments and the horizon of the previous answer."""
        connection = _new_session(log, stack)
        requests, horizon = asked, UNKNOWN_HORIZON

        def call() -> float:
            nonlocal requests, horizon
            began = time.perf_counter()
            results, horizon = pull(connection, requests, horizon=horizon)
            took = time.perf_counter() - began
            if not all(each.messages for each in results):
                raise IllegalState("the log", "has fewer messages than are to be pulled")
            requests = [replace(each.request, segment=each.segment) for each in results]
            return took

        return call

    def first_pull() -> float:
        with ExitStack() as session:
            connection = _new_session(log, session)
            return _timed(lambda: pull(connection, first))()

    what = f"32 messages of {len(first)} queues"
    yield Item("pull-end", f"{what}, at the end", reader(last), 50)
    yield Item("pull-beginning", f"{what}, at the beginning", reader(first), 50)
    yield Item("pull-first", f"{what}, first pull of a session", first_pull, 5)


def _new_session(log: GrowingLog, stack: ExitStack) -> Connection:
    """A connection like that of a consumer."""
    engine = create_engine(log.testbed.broker.dsn, application_name="mqdb bench: load", pool_size=0, indexes_only=True)
    stack.callback(engine.dispose)
    return stack.enter_context(engine.connect())


def _search(log: GrowingLog) -> Callable[[], float]:
    """Searches for times at one, two and three quarters of the log in turn."""
    times = "SELECT (SELECT store_time FROM mqdb.commit_log ORDER BY log_pos LIMIT 1), mqdb.now()"
    row = log.testbed.below.execute(times).fetchone()
    assert row is not None
    first, last = row
    moments = cycle(first + (last - first) * part / 4 for part in (1, 2, 3))
    return _timed(lambda: search_offsets(log.testbed.connection, log.topics[0].queue_keys, next(moments)))


# -- keys and ids ---------------------------------------------------------------------------------


def _some_number(log: GrowingLog, randomly: random.Random) -> int:
    """The number of a message that still exists: retention drops the first ones, and other messages lie between."""
    return randomly.randrange(log.number - log.messages() * 7 // 10, log.number)


def _find_key(log: GrowingLog, admin: BrokerAdmin, randomly: random.Random) -> float:
    number = _some_number(log, randomly)
    began = time.perf_counter()
    found = admin.messages.find(log.topic_of(number), key=f"key{number}")
    took = time.perf_counter() - began
    if not found:
        raise IllegalState("the log", f"has no message with the key key{number}")
    return took


def _ids(log: GrowingLog, randomly: random.Random) -> Iterator[UUID]:
    last, kept = segments.log(log.testbed.connection).last_pos, log.messages()
    while True:
        after = randomly.randrange(last - kept * 9 // 10, last - kept // 10)
        row = log.testbed.below.execute(_ID_BEHIND, (after,)).fetchone()
        assert row is not None
        yield row[0]


def _find_id(admin: BrokerAdmin, ids: Iterator[UUID]) -> float:
    unique_id = next(ids).hex.upper()
    began = time.perf_counter()
    found = admin.messages.show(unique_id)
    took = time.perf_counter() - began
    if not found:
        raise IllegalState("the log", f"has no message with the id {unique_id}")
    return took


# -- pages and services ---------------------------------------------------------------------------


def _pages(log: GrowingLog, stack: ExitStack) -> Iterator[Item]:
    """The parts of a page as a browser loads them, one after another."""
    password = token_urlsafe()
    settings = settings_for(log.testbed.broker).model_copy(update={"web_password": password})
    dashboard = Dashboard(settings)
    stack.callback(dashboard.close)
    server = serve_web(settings, HttpAddress("127.0.0.1", 0), dashboard.application)
    stack.callback(server.stop)
    login = base64.b64encode(f"mqdb:{password}".encode()).decode()

    def load(*parts: str) -> None:
        for part in parts:
            connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=600)
            path = f"/b/{log.testbed.broker.name}/{part}".rstrip("/") if part else f"/b/{log.testbed.broker.name}/"
            connection.request("GET", path, headers={"Authorization": f"Basic {login}", "Host": str(server.address)})
            response = connection.getresponse()
            response.read()
            connection.close()
            if response.status != http.client.OK:
                raise IllegalState("the dashboard", f"answers {response.status} for {path}")

    topic, group = log.topics[0].name, log.groups[0]
    pages = {
        "overview": ("", "health", "attention", "rate"),
        "storage": ("storage", "storage/findings", "storage/segments"),
        "messages": (f"topics/{topic}/messages",),
        "group": (f"groups/{group}", f"groups/{group}/topics"),
    }
    for name, parts in pages.items():
        yield Item(name, f"page {name} of the dashboard", _timed(partial(load, *parts)), 3)


def _serve(log: GrowingLog) -> float:
    with Producer(f"{PREFIX}waiting", settings=settings_for(log.testbed.broker)) as producer:
        result = producer.send(message_sample.message(log.topics[0].name, 0))
    began = time.perf_counter()
    with Server(settings_for(log.testbed.broker)):
        while not _is_dispatched(log):
            if time.perf_counter() > began + _START_SECONDS:
                raise IllegalState("the services", f"have not dispatched {result.message_id}")
            time.sleep(_LOOK_SECONDS)
        return time.perf_counter() - began


def _is_dispatched(log: GrowingLog) -> bool:
    last_pos = segments.log(log.testbed.connection).last_pos
    return checkpoints.newest(log.testbed.connection)["dispatch"].done_pos >= last_pos


def _adopt(log: GrowingLog) -> float:
    """All calls in one transaction, which is rolled back so that the next call finds the same state."""
    log.testbed.dispatch_all()
    log.index_all()
    with psycopg.connect(log.testbed.broker.dsn, application_name="mqdb bench: load") as connection:
        connection.execute("UPDATE mqdb.broker SET system_identifier = system_identifier - 1")
        began = time.perf_counter()
        while (connection.execute("SELECT more FROM mqdb.adopt()").fetchone() or (False,))[0]:
            pass
        took = time.perf_counter() - began
        connection.rollback()
    return took


def _drop_oldest(log: GrowingLog) -> float:
    connection = log.testbed.connection
    rules = RetentionRules(delete_when=tuple(range(24)))
    later = segments.log(connection).now + rules.longest_kept * 2
    writes_to = checkpoints.newest(connection)["dispatch"].segment
    oldest, *_ = expired(rules, later, segments.find_all(connection), writes_to, None)
    began = time.perf_counter()
    is_gone = segments.drain(connection, oldest) and all(
        partitions.remove(connection, parent, oldest) for parent in (*partitions.INDEXES, partitions.LOG)
    )
    if not is_gone:
        raise IllegalState("retention", f"of segment {oldest} waits for somebody's lock")
    segments.forget(connection, oldest)
    return time.perf_counter() - began
