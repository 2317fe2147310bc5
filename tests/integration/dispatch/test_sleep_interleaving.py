"""A dispatcher falls asleep among senders in random interleavings: no message waits for a wake-up that never comes.

One thread takes the steps of all sessions. `mqdb.fall_asleep` runs in a separate thread: advisory locks stop it, so
that other steps come between its statements. The dispatcher follows the rules of `mqdb.service.dispatcher`.
"""

import random
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import pytest
import sqlalchemy

from mqdb.broker.dispatch import (
    WAKE_CHANNEL,
    DispatchOutcome,
    DispatchResult,
    dispatch,
    fall_asleep,
    look,
    stay_awake,
    wake_and_dispatch,
)
from mqdb.store.engine import create_engine, driver
from tests.fixtures import log
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.log import Connection, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.variants import usually

WRITERS = 3
STEPS = 60
COUNTS = (1, 1, 1, 2, 8)  # of the records of a statement
BATCHES = (1, 5, 1000, 1000)

FALL_ASLEEP = "mqdb.fall_asleep(integer, boolean)"


WAITING = "SELECT (SELECT count(*) FROM mqdb.commit_log) - (SELECT count(*) FROM mqdb.consume_queue)"


class Violation(AssertionError):
    """A message waits, and no session wakes the dispatcher."""


@dataclass
class Writer:
    """A session and the number of records that its transaction has sent; None outside a transaction."""

    connection: Connection
    records: int | None = None
    at_savepoint: int | None = None


class Interleaving:
    """Interleavings, one after another on the same sessions."""

    def __init__(
        self, database: Database, sleeper: sqlalchemy.Connection, thread: ThreadPoolExecutor, gates: int
    ) -> None:
        self.writers = [Writer(database.connect()) for _ in range(WRITERS)]
        self.other = database.connect()
        self.sleeper = sleeper
        self.thread = thread
        self.gates = range(gates)
        driver(sleeper).execute(f"LISTEN {WAKE_CHANNEL}")
        self.can_prepare = scalar(self.other, "SHOW max_prepared_transactions") != "0"
        [self.queue] = log.create_topic(self.other, "orders")
        log.dispatch_all(self.other)  # a clone adopts itself first
        self.prepared: dict[str, int] = {}
        self.waiting = 0  # messages that are committed and not dispatched
        self.is_asleep = False  # says the state
        self.sleeps = False
        self.is_woken = False
        self.falling: Future[DispatchResult | None] | None = None
        self.gate: int | None = None

    def play(self, seed: int) -> None:
        """Play the interleaving of a seed. Raises Violation."""
        self.random = random.Random(seed)
        self.history = [f"seed {seed}"]
        stay_awake(self.sleeper)
        self.is_asleep = self.sleeps = False
        weights = {
            self._send: 3,
            self._place: 8,
            self._begin: 10,
            self._send_in_transaction: 14,
            self._savepoint: 3,
            self._rollback_to: 3,
            self._commit: 16,
            self._rollback: 3,
            self._prepare: 4 if self.can_prepare else 0,
            self._end_prepared: 6,
            self._dispatch: 4,
            self._round: 16,
            self._fall_asleep: 24,
            self._pass_gate: 30,
        }
        try:
            for step in self.random.choices(list(weights), list(weights.values()), k=STEPS):
                step()
                self._check()
            while self._writer(busy=True) or self.prepared or self.falling:
                self.random.choice((self._commit, self._rollback, self._end_prepared, self._pass_gate))()
                self._check()
        finally:
            self.other.execute("SELECT pg_advisory_unlock_all()")
            for name in self.prepared:  # of a run that failed
                self.other.execute(f"ROLLBACK PREPARED '{name}'".encode())
        self.waiting -= log.dispatch_all(self.other)
        if self.waiting:
            raise Violation(f"{self.waiting} messages wait for ever")

    def _check(self) -> None:
        if self.waiting and self.sleeps and not self._hears():
            raise Violation(f"nobody wakes the dispatcher for {self.waiting} messages")

    # -- what senders do ------------------------------------------------------------------------

    def _writer(self, *, busy: bool) -> Writer | None:
        fitting = [writer for writer in self.writers if (writer.records is not None) == busy]
        return self.random.choice(fitting) if fitting else None

    def _run(self, writer: Writer, statement: str) -> None:
        self._tell(f"writer {self.writers.index(writer)}: {statement}")
        writer.connection.execute(statement.encode())

    def _append(self, writer: Writer) -> int:
        count = self.random.choice(COUNTS)
        self._tell(f"writer {self.writers.index(writer)} sends {count}")
        return len(log.append(writer.connection, self.queue, count))

    def _send(self) -> None:
        if writer := self._writer(busy=False):
            self.waiting += self._append(writer)

    def _place(self) -> None:
        """Place records as a producer does: neither these records nor earlier ones wait."""
        if writer := self._writer(busy=False):
            found = log.append_placed(writer.connection, self.queue, self.random.choice(COUNTS))
            self._tell(f"writer {self.writers.index(writer)} sends {found}")
            self.waiting = scalar(self.other, WAITING)

    def _begin(self) -> None:
        """Begin a transaction, perhaps with a snapshot that is older than the sleep."""
        if writer := self._writer(busy=False):
            isolation = self.random.choice(("READ COMMITTED", "REPEATABLE READ"))
            self._run(writer, f"BEGIN ISOLATION LEVEL {isolation}; SELECT FROM mqdb.topic")
            writer.records, writer.at_savepoint = 0, None

    def _send_in_transaction(self) -> None:
        if writer := self._writer(busy=True):
            writer.records = (writer.records or 0) + self._append(writer)

    def _savepoint(self) -> None:
        if writer := self._writer(busy=True):
            self._run(writer, "SAVEPOINT here")
            writer.at_savepoint = writer.records

    def _rollback_to(self) -> None:
        if (writer := self._writer(busy=True)) and writer.at_savepoint is not None:
            self._run(writer, "ROLLBACK TO here")
            writer.records = writer.at_savepoint

    def _commit(self) -> None:
        if writer := self._writer(busy=True):
            self._run(writer, "COMMIT")
            self.waiting += writer.records or 0
            writer.records = None

    def _rollback(self) -> None:
        if writer := self._writer(busy=True):
            self._run(writer, "ROLLBACK")
            writer.records = None

    def _prepare(self) -> None:
        if writer := self._writer(busy=True):
            name = f"{len(self.history)}"
            self._run(writer, f"PREPARE TRANSACTION '{name}'")
            self.prepared[name] = writer.records or 0
            writer.records = None

    def _end_prepared(self) -> None:
        if self.prepared and (writer := self._writer(busy=False)):
            name = self.random.choice(list(self.prepared))
            how = self.random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            self._run(writer, f"{how} PREPARED '{name}'")
            self.waiting += self.prepared.pop(name) * (how == "COMMIT")

    # -- what dispatchers do --------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Dispatch as a client that considers the dispatcher dead."""
        self._count(log.dispatch(self.other, self.random.choice(BATCHES)))

    def _round(self) -> None:
        if self.falling is None and (not self.sleeps or self._hears()):
            call = wake_and_dispatch if self.is_asleep else dispatch
            self.is_asleep = self.sleeps = False
            self._count(call(self.sleeper, self.random.choice(BATCHES)))

    def _fall_asleep(self) -> None:
        if self.falling is None and not self.is_asleep:
            self._notifications()  # those of transactions that have ended
            self.is_woken = False
            gates = [gate for gate in self.gates if self.random.random() < 0.3]
            self.other.execute("SELECT pg_advisory_lock(gate) FROM unnest(%s::bigint[]) AS gate", [gates])
            self._tell("the dispatcher falls asleep")
            self.falling = self.thread.submit(fall_asleep, self.sleeper, self.random.choice(BATCHES))
            self._come_to_gate()

    def _pass_gate(self) -> None:
        if self.falling is not None:
            self._tell(f"it passes gate {self.gate}")
            self.other.execute("SELECT pg_advisory_unlock(%s)", [self.gate])
            self._come_to_gate()

    def _come_to_gate(self) -> None:
        """Wait until the dispatcher has reached a gate, or has finished."""
        assert self.falling is not None
        while not self.falling.done():
            found = self.other.execute(
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s",
                [driver(self.sleeper).info.backend_pid],
            ).fetchone()
            if found is not None:
                self.gate = found[0]
                return
        result = self.falling.result()
        self.falling = None
        self.other.execute("SELECT pg_advisory_unlock_all()")
        self.is_asleep = result is not None
        if result is not None:
            self._count(result)
            self.sleeps = result.outcome is not DispatchOutcome.LOCKED and not result.more

    def _count(self, result: DispatchResult | log.Batch) -> None:
        self._tell(f"dispatched: {result}")
        self.waiting -= result.messages

    def _hears(self) -> bool:
        """Whether the dispatcher was woken. An answer from the server also delivers the notifications."""
        self.is_woken = look(self.sleeper).is_woken or self._notifications() or self.is_woken
        return self.is_woken

    def _notifications(self) -> bool:
        return bool(list(driver(self.sleeper).notifies(timeout=0)))

    def _tell(self, what: str) -> None:
        self.history.append(what)


def play_all(database: Database, seeds: Iterable[int], mutation: Sequence[tuple[str, str]] = ()) -> None:
    gates = put_gates(database.connect(), mutation)
    engine = create_engine(database.dsn)
    try:
        with engine.connect() as sleeper, ThreadPoolExecutor(1) as thread:
            interleaving = Interleaving(database, sleeper, thread, gates)
            for seed in seeds:
                try:
                    interleaving.play(seed)
                except Exception as error:  # whatever it is, it goes on with its history
                    error.add_note("\n".join(interleaving.history))
                    raise
    finally:
        engine.dispose()


def put_gates(connection: Connection, mutation: Sequence[tuple[str, str]]) -> int:
    """Replace parts of mqdb.fall_asleep, and add a gate after each statement, with advisory locks 0, 1, ...

    Returns the number of gates.
    """
    definition = scalar(connection, "SELECT pg_get_functiondef(%s::regprocedure)", [FALL_ASLEEP])
    for text, replacement in mutation:
        assert text in definition, "the function has changed; so must this test"
        definition = definition.replace(text, replacement)
    head, begin, body = definition.partition("\nBEGIN\n")
    numbers = count()
    # Not in the innermost blocks: nothing comes behind them.
    gated = re.sub(
        r"^( {4}| {8})(?=\S).*(;|THEN)$",
        lambda line: f"{line[0]} PERFORM pg_advisory_xact_lock_shared({next(numbers)});",
        body,
        flags=re.M,
    )
    connection.execute(head + begin + gated)
    return next(numbers)


usually_notified = pytest.mark.parametrize(
    "sleepy", usually("notified", of=["notified", "with prepared transactions"]), indirect=True
)


@usually_notified
@pytest.mark.timeout(60 + fuzz_cases())
def test_no_message_waits_for_a_dispatcher_that_nobody_wakes(sleepy: Database) -> None:
    chance = fuzz_random()
    play_all(sleepy, (chance.randrange(2**32) for _ in range(fuzz_cases())))


SAY_SO = "PERFORM setval('mqdb.dispatcher_state', CASE WHEN places THEN 1 ELSE 4 END);"

#: Each takes away one thing that falling asleep cannot do without.
MUTATIONS = {
    "locks not looked at": [("AND l.mode = 'RowExclusiveLock'", "AND false")],
    "state set after the look": [(SAY_SO, ""), ("is_asleep := true;", f"{SAY_SO} is_asleep := true;")],
}


@usually_notified
@pytest.mark.parametrize("mutation", usually("locks not looked at", of=MUTATIONS))
def test_the_property_fails_when_falling_asleep_is_broken(sleepy: Database, mutation: str) -> None:
    with pytest.raises(Violation):
        play_all(sleepy, range(200), MUTATIONS[mutation])
