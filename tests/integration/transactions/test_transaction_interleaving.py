"""Ends, checks, answers and deaths in any order: committed messages are delivered once, rolled-back ones never.

Producers report the ends of their transactions at random times, repeatedly and to different sessions; two checkers ask;
producers die, and backends are killed in the middle of statements. The seed is printed; MQDB_TRANSACTION_SEED replays
it as far as the order of threads allows.
"""

import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Connection, Engine, text

import mqdb
from mqdb.broker.transactions.transactions import EndTransaction, end
from mqdb.common.dsn import BrokerDsn
from mqdb.common.transaction import LocalTransactionState
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import BrokerUnavailable
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.engine import create_engine, translated
from mqdb.store.transactions.half_checks import open_checks
from mqdb_client.instance import ClientInstance
from tests.fixtures.broker import topic
from tests.fixtures.delay import delivered
from tests.fixtures.postgres import Database
from tests.fixtures.threads import Doing
from tests.fixtures.transactions import COMMIT, ROLLBACK, SECOND, UNKNOWN, Checker, HalfSent, halves, send_half

HALVES = 100
KILLED = "mqdb killed"


class Producers:
    """Clients of the group, some of which die and are replaced."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._guard = threading.Lock()
        self._live = [self._new() for _ in range(2)]
        self.deaths = 0

    def _new(self) -> ClientInstance:
        instance = ClientInstance(BrokerDsn("broker-a", self._dsn))
        instance.open()
        registration = Registration(instance.client_id, ClientKind.PRODUCER, "senders", mqdb.__version__)
        instance.register(registration._replace(checks_transactions=True))
        return instance

    def some(self, chance: random.Random) -> str:
        """The client id of a random producer."""
        with self._guard:
            return chance.choice(self._live).client_id

    def let_one_die(self, chance: random.Random) -> None:
        with self._guard:
            dead = self._live.pop(chance.randrange(len(self._live)))
            dead.close()
            self._live.append(self._new())
            self.deaths += 1

    def close(self) -> None:
        for instance in self._live:
            instance.close()


class World:
    """Half messages with the fates of their transactions, and the events that may happen to them."""

    def __init__(self, database: Database, engine: Engine, sent: dict[str, HalfSent], seed: int) -> None:
        chance = random.Random(seed)
        self._engine = engine
        self._admin = database.connect()
        self.fates = {body: chance.choice((COMMIT, ROLLBACK)) for body in sent}
        self._sent = sent
        self.producers = Producers(database.dsn)
        self.happened: Counter[str] = Counter()

    def _try(self, work: Callable[[Connection], object]) -> None:
        """Run work on a connection that may be killed, after which the outcome of the work is unknown."""
        try:
            with translated(KILLED), self._engine.connect() as connection:
                work(connection)
        except BrokerUnavailable:
            self.happened["killed"] += 1

    def end_one(self, chance: random.Random) -> None:
        """A producer reports what it knows, or that it does not know, perhaps for the second time."""
        body = chance.choice(list(self._sent))
        state = chance.choice((self.fates[body], UNKNOWN))

        def say(connection: Connection) -> None:
            ended = self._sent[body].end(connection, state)
            self.happened["ended" if ended.has_changed else "ended before, or unknown"] += 1

        self._try(say)

    def check(self, checker: Checker, chance: random.Random) -> None:
        found = checker.after(chance.uniform(0, 8) * SECOND)
        self.happened["asked"] += found.asked

    def answer_some(self, chance: random.Random, certainty: float = 0.5) -> int:
        """A producer answers its checks; returns the number of answers."""
        answered: list[int] = []
        client_id = self.producers.some(chance)

        def answer(connection: Connection) -> None:
            for check in open_checks(connection, "broker-a", client_id, "senders", 5):
                fate = self.fates[check.message.body.decode()]
                state = fate if chance.random() < certainty else UNKNOWN
                self._answer(connection, check.log_pos, check.message.message_id, state, client_id)
                answered.append(check.log_pos)

        self._try(answer)
        self.happened["answered"] += len(answered)
        return len(answered)

    @staticmethod
    def _answer(
        connection: Connection, log_pos: int, message_id: str, state: LocalTransactionState, client_id: str
    ) -> None:
        end(connection, EndTransaction("senders", log_pos, parse_unique_id(message_id), state, client_id))

    def kill_one(self, chance: random.Random) -> None:
        at_work = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"
        found = self._admin.execute(at_work, [KILLED]).fetchall()
        if found:
            self._admin.execute("SELECT pg_terminate_backend(%s)", [chance.choice(sorted(found))[0]])
            self.happened["kills"] += 1


def doing(seed: int, times: int, act: Callable[[random.Random], object]) -> Doing[None]:
    """Run an act this many times in a separate thread."""
    chance = random.Random(seed)

    def run() -> None:
        for _ in range(times):
            act(chance)

    return Doing(run)


@pytest.fixture
def killed_engine(database: Database) -> Iterator[Engine]:
    """An engine whose backends are killed."""
    engine = create_engine(database.dsn, application_name=KILLED)
    yield engine
    engine.dispose()


def test_each_half_message_comes_to_its_end_once(
    database: Database, broker: Connection, engine: Engine, killed_engine: Engine
) -> None:
    seed = int(os.environ.get("MQDB_TRANSACTION_SEED", random.SystemRandom().randrange(2**32)))
    route = topic(broker)
    sent = {str(n): send_half(broker, route, str(n), dispatched=False) for n in range(HALVES)}
    world = World(database, killed_engine, sent, seed)

    with ExitStack() as stack:
        stack.callback(world.producers.close)
        checkers = [
            Checker(stack.enter_context(engine.connect()), check_max=10**6, check_interval=5 * SECOND) for _ in range(2)
        ]
        threads = [doing(seed + n, 75, world.end_one) for n in range(3)]
        threads += [doing(seed + 10 + n, 20, partial(world.check, checker)) for n, checker in enumerate(checkers)]
        threads += [doing(seed + 20 + n, 40, world.answer_some) for n in range(2)]
        threads += [doing(seed + 30, 150, world.kill_one), doing(seed + 31, 4, world.producers.let_one_die)]
        for thread in threads:
            thread.result()

        # Then all is calm, and producers answer until nothing is open.
        chance = random.Random(seed + 40)
        for _ in range(1_000):
            checkers[0].after(timedelta(seconds=6))
            while world.answer_some(chance, certainty=1.0):
                pass
            if "PREPARED" not in {half["state"] for half in halves(broker)}:
                break

    sys.stdout.write(f"seed {seed}: {dict(world.happened)}, {world.producers.deaths} producers died\n")
    committed = [body for body, fate in world.fates.items() if fate is COMMIT]
    assert Counter(delivered(broker)) == Counter(committed), f"seed {seed}"
    assert len(halves(broker)) == HALVES
    copies = broker.execute(text("SELECT count(*) FROM mqdb.half_message WHERE copy_pos IS NOT NULL")).scalar_one()
    assert copies == len(committed)
