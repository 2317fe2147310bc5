"""Consumers of all kinds on a database that goes back while producers continue: no message in the log is skipped.

    copy        an older copy of the stopped server's directory is put back: the same timeline
    recovery    a base backup is recovered to a point in time: a new timeline
    promotion   an asynchronous standby that lags behind replaces the primary, which has died
    crash       all processes of a server with synchronous_commit = off die
    restart     the server is stopped and started: nothing is lost
    nothing     no fault, and no message is delivered twice

Consumers run while the database goes back, or they are paused until the log has grown past their positions. Some
messages are delayed, some are committed half messages, and some fail at first. A Spark query copies every message to
another topic. The usual run covers two of the scenarios; these runs cover all of them, with ten seeds each:

    MQDB_FAULT_RUNS=10 pytest tests/acceptance/test_history_faults.py

MQDB_FAULT_SEED is the seed of the first run; the work under way at that moment also depends on the machine.
"""

import itertools
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, text

from mqdb.errors import BrokerUnavailable, SendGivenUp, SendOutcomeUnknown
from mqdb.settings import Settings, load_settings
from mqdb_client import LocalTransactionState, Message, Producer, TransactionProducer
from tests.fixtures.consuming import LATER, PUSH, WAYS, Start, starting
from tests.fixtures.copying import TOPIC, Copying
from tests.fixtures.fault_history import SCENARIOS, Scenario
from tests.fixtures.fault_load import Background
from tests.fixtures.fault_trouble import wait_while
from tests.fixtures.faults import DELAY_LEVELS
from tests.fixtures.history import Past
from tests.fixtures.pgbouncer import running_pgbouncer
from tests.fixtures.postgres import Database
from tests.fixtures.serve import ServeProcess, query

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "0"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

#: Of each part of a run.
MESSAGES: Final = 200 if RUNS else 20

#: Name of a run: scenario, whether consumers are paused, whether there is a pooler.
ALL: Final = [
    *((scenario, paused, False) for scenario in ("copy", "recovery", "promotion") for paused in (False, True)),
    *((scenario, False, False) for scenario in ("crash", "restart", "nothing")),
    *((scenario, False, True) for scenario in ("copy", "promotion", "crash", "nothing")),
    *((scenario, True, True) for scenario in ("copy", "promotion")),
]
USUAL: Final = [("promotion", False, False)]

_DRAIN_SECONDS: Final = 60.0

_SETTINGS: Final = {
    "message_delay_level": DELAY_LEVELS,
    "transaction_timeout": "1s",
    "transaction_check_interval": "1s",
    "transaction_check_max": 1_000,
}

POLLED: Final = ("lite pull", "assigned")
TRANSACTIONAL: Final = [way for way in PUSH if "exactly once" in way]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("scenario", "is_paused", "is_pooled"), ALL if RUNS else USUAL)
@pytest.mark.parametrize("run", range(RUNS or 1))
def test_nothing_of_the_log_is_skipped(
    run: int,
    scenario: str,
    is_paused: bool,
    is_pooled: bool,
    past: Past,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = FIRST_SEED + run
    with ExitStack() as stack:
        going_back = SCENARIOS[scenario](past)
        stack.callback(going_back.end)
        if is_pooled:
            parts = conninfo_to_dict(past.dsn)
            pooler = running_pgbouncer(past.server, user=str(parts["user"]), password=str(parts["password"]))
            monkeypatch.setenv("MQDB_POOL_DSN", stack.enter_context(pooler).dsn(past.dsn))
        with psycopg.connect(past.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE public.effects (way text NOT NULL, body text NOT NULL)")
        broker = ServeProcess(tmp_path / "serve.log", dsn=past.dsn, **_SETTINGS)
        stack.callback(broker.clean_up)
        readers = stack.enter_context(reading(seed, past, tmp_path))
        settings = load_settings(dsn=past.dsn, send_message_timeout=timedelta(seconds=2))
        undone = 0
        with Sending(settings) as sending:
            sending.wait_for(MESSAGES)
            going_back.begin()
            if scenario == "crash":
                undone = crash(going_back, sending, readers)
            else:
                sending.wait_for(MESSAGES)
                if is_paused:
                    readers.pause()
                going_back.go_back()
            sending.wait_for(3 * MESSAGES)
            if is_paused:
                readers.resume()
            sending.wait_for(MESSAGES // 2)

        wait_while(readers.left, _DRAIN_SECONDS, "not consumed")

        stored, copied = readers.stored(), readers.copied()
        lost = set(sending.acknowledged) - set(stored)
        repeated = {way: sum(counts[body] > 1 for body in stored) for way, counts in readers.accepted.items()}
        effects = readers.effects()
        with capsys.disabled():
            name = f"{scenario}{', paused' * is_paused}{', behind PgBouncer' * is_pooled}"
            counts = f"acknowledged {len(sending.acknowledged)}, in the log {len(stored)}, lost {len(lost)}"
            told = f"effects undone {undone}, skipped 0, effects {len(effects)} (each once), repeated {repeated}"
            told += f", Spark stopped {len(readers.copying.stopped)}"
            print(f"\nseed {seed}, {name}: {counts}, {told}")  # noqa: T201
        assert max(Counter(stored).values()) == 1
        assert going_back.loses <= bool(lost or undone), "it means nothing"
        assert set(effects.values()) == set(copied.values()) == {1}
        if scenario == "nothing":
            assert not lost
            assert set(repeated.values()) == {0}
            assert readers.copying.stopped == []


def crash(going_back: Scenario, sending: "Sending", readers: "Readers") -> int:
    """Crash while no message is sent and consumers have much to do; returns how many effects the crash undid.

    Dispatch waits for the disk, so every commit before a dispatch is on the disk as well.
    """
    readers.pause()
    sending.wait_for(2 * MESSAGES)
    with sending.held():
        before = len(readers.effects())
        readers.resume()
        wait_while(lambda: (count := len(readers.effects())) < before + 20 and f"{count} effects", 30, "not consumed")
        seen = len(readers.effects())
        going_back.go_back()
        return max(seen - len(readers.effects()), 0)


class Sending(Background):
    """Sends each message to `orders` once: plain messages, delayed ones, and ones in a transaction."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._turn = threading.Lock()
        self.acknowledged: list[str] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Send nothing during the block."""
        with self._turn:
            yield

    def wait_for(self, count: int) -> None:
        """Wait until `count` more messages are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_while(lambda: len(self.acknowledged) < wanted, 60, "not sent")

    def _run(self) -> None:
        commit = LocalTransactionState.COMMIT
        with (
            Producer("senders", settings=self._settings) as plain,
            TransactionProducer(
                "transactions",
                settings=self._settings,
                execute_local_transaction=lambda _message, _argument: commit,
                check_local_transaction=lambda _message: commit,
            ) as transactions,
        ):
            for number in itertools.count():
                if self.stop.wait(0.005):
                    return
                name = f"message {number}"
                with self._turn, self._acknowledging(name):
                    if number % 10 == 9:
                        transactions.send_in_transaction(Message("orders", name))
                    else:
                        plain.send(Message("orders", name, delay_level=1 if number % 10 == 4 else 0))

    @contextmanager
    def _acknowledging(self, name: str) -> Iterator[None]:
        """Send a message.

        A failed send is not repeated: behind a pooler it is unknown whether the message is stored.
        """
        with suppress(BrokerUnavailable, SendGivenUp, SendOutcomeUnknown):
            yield
            self.acknowledged.append(name)


class Readers:
    """A consumer of each kind, each in a separate group. Each listener fails some messages at first."""

    def __init__(self, seed: int, past: Past, start: Start) -> None:
        self._seed, self._past = seed, past
        self._failed: set[tuple[str, str]] = set()
        #: How often each has consumed a message; those of exactly once as they say, whatever their transactions do.
        self.accepted: defaultdict[str, Counter[str]] = defaultdict(Counter)
        past.create_topic(TOPIC)
        self.copying = Copying(Database(past.dsn))
        second = timedelta(seconds=1)
        self._consuming = {
            way: start(
                way,
                partial(self._answer, way),
                group=way.replace(", ", "-").replace(" ", "-"),
                **({"auto_commit_interval": second} if way in POLLED else {"persist_consumer_offset_interval": second}),
                **({"effect": partial(self._write, way)} if way in TRANSACTIONAL else {}),
            )
            for way in WAYS
        }

    def poll(self) -> None:
        """Make the polled consumers look for messages."""
        for way in POLLED:
            reader = self._consuming[way]
            before = len(reader.received)
            self.accepted[way].update(reader.bodies()[before:])

    def pause(self) -> None:
        """Stop all pulls."""
        for reader in self._consuming.values():
            reader.pause()
        self.copying.pause()

    def resume(self) -> None:
        """Resume all pulls."""
        for reader in self._consuming.values():
            reader.resume()
        self.copying.resume()

    def _answer(self, way: str, body: str) -> object:
        is_unlucky = random.Random(f"{self._seed} {way} {body}").random() < 0.05
        if is_unlucky and way != "broadcasting" and (way, body) not in self._failed:
            self._failed.add((way, body))
            return LATER["orderly" in PUSH[way]]
        self.accepted[way][body] += 1
        return None

    def _write(self, way: str, body: str, connection: Connection) -> None:
        connection.execute(text("INSERT INTO public.effects VALUES (:way, :body)"), {"way": way, "body": body})

    # -- what has come of it --------------------------------------------------------------------

    def stored(self) -> list[str]:
        """The messages in the log that are visible to consumers."""
        return self._texts("orders")

    def copied(self) -> Counter[str]:
        """Spark's copies: query and message."""
        return Counter(self._texts(TOPIC))

    def _texts(self, topic: str) -> list[str]:
        return [body for (body,) in query(self._past.dsn, f"SELECT text FROM mqdb.message WHERE topic = '{topic}'")]

    def effects(self) -> Counter[tuple[str, str]]:
        """The committed effects, by kind of consumer and message."""
        return Counter(query(self._past.dsn, "SELECT way, body FROM public.effects"))

    def left(self) -> dict[str, object]:
        """The waiting messages, and for each kind of consumer the messages that it has not consumed."""
        [(waiting,)] = query(self._past.dsn, "SELECT count(*) FROM mqdb.scheduled")
        [(halves,)] = query(self._past.dsn, "SELECT count(*) FROM mqdb.half_messages WHERE state = 'PREPARED'")
        stored, effects = set(self.stored()), self.effects()
        missing = {way: stored - self.accepted[way].keys() for way in WAYS}
        missing |= {way: {body for body in stored if not effects[way, body]} for way in TRANSACTIONAL}
        missing["Spark"] = stored - {copy.partition(" ")[2] for copy in self.copied()}
        left: dict[str, object] = {way: f"{len(names)}: {sorted(names)[:3]}" for way, names in missing.items() if names}
        return left | ({"waiting": waiting} if waiting else {}) | ({"halves": halves} if halves else {})


@contextmanager
def reading(seed: int, past: Past, directory: Path) -> Iterator[Readers]:
    """Running consumers, including polled ones."""
    with starting(past.dsn, directory) as start:
        readers = Readers(seed, past, start)

        class Polling(Background):
            def _run(self) -> None:
                while not self.stop.wait(0.02):
                    readers.poll()

        with Polling(), readers.copying:
            yield readers
