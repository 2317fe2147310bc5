"""Delayed, timer and transactional messages, while two broker processes and PostgreSQL are killed with -9 at random.

Each is delivered exactly once, none before its time, and those that were rolled back never. Every run prints its seed
and what it has met. The usual run is short; a long one, with other seeds each time:

    MQDB_FAULT_RUNS=5 MQDB_FAULT_KILLS=10 MQDB_FAULT_MESSAGES=50000 pytest tests/acceptance/test_schedule_faults.py

MQDB_FAULT_SEED is the seed of the first run: of what is killed when, how long each message waits, and what each
transaction comes to. What is under way at that moment depends on the machine as well.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest

from mqdb.cli.bench.figures import percentile
from mqdb.settings import load_settings
from mqdb.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from mqdb_client import LocalTransactionState, Producer, TransactionProducer
from tests.fixtures.fault_schedule import (
    DELAY_LEVELS,
    Arrivals,
    DelayedSends,
    Kind,
    LocalTransactions,
    Quota,
    TransactionSends,
    Wait,
    senders,
)
from tests.fixtures.fault_trouble import Trouble, killed, replay_told, wait_while
from tests.fixtures.faults import FaultyBroker, faulty_broker
from tests.fixtures.log import create_topic
from tests.fixtures.serve import query

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "1"))
#: Of broker processes and of PostgreSQL each, at least.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "1"))
#: Of all kinds together, at least.
MESSAGES: Final = int(os.environ.get("MQDB_FAULT_MESSAGES", "1000"))
#: Of load, about.
SECONDS: Final = float(os.environ.get("MQDB_FAULT_SECONDS", str(max(2.0 * KILLS, MESSAGES / 500))))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

_SHARES: Final = {Kind.LEVEL: 0.4, Kind.TIMER: 0.4, Kind.TRANSACTION: 0.2}

_QUEUES: Final = 4

# Half messages are asked about soon and often: what is tested is not how long that takes.
_SETTINGS: Final = {
    "message_delay_level": DELAY_LEVELS,
    "transaction_timeout": "1s",
    "transaction_check_interval": "1s",
    "transaction_check_max": 1_000,
}

# Until all that waits has come, on a machine that does other things as well.
_DRAIN_SECONDS: Final = 60.0 + MESSAGES / 200

_COPIES: Final = """
    SELECT text, (extract(epoch FROM store_time) * 1000000)::bigint FROM mqdb.message WHERE topic = ANY (%s)"""

_UNDECIDED: Final = "SELECT state, count(*) FROM mqdb.half_messages WHERE state IN ('PREPARED', 'DISCARDED') GROUP BY 1"


# -- the test -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * SECONDS + 30 * KILLS + 2 * _DRAIN_SECONDS)
@pytest.mark.parametrize("run", range(RUNS))
def test_what_is_scheduled_comes_once_and_not_before_its_time_whatever_is_killed(
    run: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = FIRST_SEED + run
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(tmp_path, **_SETTINGS))
        prepare(broker)
        arrivals = stack.enter_context(Arrivals(load_settings(dsn=broker.dsn)))
        trouble = Trouble(random.Random(seed), broker, partial(wait_until_each_kind_arrives, arrivals))
        again = f"MQDB_FAULT_SEED={seed} MQDB_FAULT_MESSAGES={MESSAGES} MQDB_FAULT_KILLS={KILLS}"
        stack.enter_context(replay_told(again, trouble.story, tmp_path))

        outcome = send_under_faults(seed, broker, trouble, arrivals)

        assert broker.end() == [0, 0]
        with capsys.disabled():
            print(f"\nseed {seed}: kills: {killed(trouble.kills)}; {outcome.report()}")  # noqa: T201
        check(outcome)
        assert min(trouble.kills["serve"], trouble.kills["PostgreSQL"]) >= KILLS
        assert len(outcome.waits) + len(outcome.transactions.fates) >= MESSAGES * 0.9


def prepare(broker: FaultyBroker) -> None:
    """A topic for each kind, and two broker processes."""
    with psycopg.connect(broker.dsn, autocommit=True) as connection:
        for kind in Kind:
            create_topic(connection, kind, _QUEUES)
    broker.start_serving()
    broker.start_serving()


def send_under_faults(seed: int, broker: FaultyBroker, trouble: Trouble, arrivals: Arrivals) -> "Outcome":
    """Returns when all that is to come has come, and no half message is left."""
    settings = load_settings(dsn=broker.dsn, send_message_timeout=timedelta(seconds=2))
    transactions = LocalTransactions(seed)
    with (
        Producer("senders", settings=settings) as producer,
        TransactionProducer("transactions", transactions, settings=settings) as transactional,
    ):
        levels, timers = (DelayedSends(producer, kind, seed) for kind in (Kind.LEVEL, Kind.TIMER))
        sends: dict[Kind, Callable[[str], None]] = {
            Kind.LEVEL: levels,
            Kind.TIMER: timers,
            Kind.TRANSACTION: TransactionSends(transactional, transactions),
        }
        quotas = {kind: Quota(round(MESSAGES * share), SECONDS) for kind, share in _SHARES.items()}
        with ExitStack() as stack:
            threads = [stack.enter_context(each) for kind in Kind for each in senders(kind, quotas[kind], sends[kind])]
            trouble.run(SECONDS, KILLS)
            for quota in quotas.values():
                quota.is_over.set()
            for thread in threads:
                thread.join()
        wait_until_all_have_come(arrivals, [*levels.waits, *timers.waits, *committed(transactions)])
        wait_while(lambda: query(broker.dsn, _UNDECIDED), _DRAIN_SECONDS, "half messages are undecided")

        # Whoever serves now finds nothing that it would deliver again.
        broker.kill_processes(broker.serving)
        trouble.start_serving()
        levels.send("level:last", Wait(level=1))
        timers.send("timer:last", Wait(delay_ms=1_000))
        wait_until_all_have_come(arrivals, [*levels.waits, *timers.waits])
    return Outcome(
        levels.waits | timers.waits,
        transactions,
        query(broker.dsn, _COPIES, list(Kind)),
        dict(query(broker.dsn, _COPIES, [SCHEDULE_TOPIC, TIMER_TOPIC])),
        arrivals.first,
    )


def wait_until_each_kind_arrives(arrivals: Arrivals) -> None:
    """Until some more of each have."""
    least = {kind: arrivals.counts[kind] + 5 for kind in Kind}
    wait_while(
        lambda: [kind for kind in Kind if arrivals.counts[kind] < least[kind]], _DRAIN_SECONDS, "nothing arrives"
    )


def wait_until_all_have_come(arrivals: Arrivals, names: Iterable[str]) -> None:
    """Until a listener has had each of them."""
    wanted = set(names)
    wait_while(lambda: sorted(wanted - arrivals.first.keys())[:20], _DRAIN_SECONDS, "not delivered")


def committed(transactions: LocalTransactions) -> set[str]:
    """The half messages whose local transaction was committed."""
    return {name for name, fate in transactions.fates.items() if fate.state is LocalTransactionState.COMMIT}


# -- the promises -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What has become of the messages, each called by its name; times are in microseconds since 1970."""

    #: Of what was delayed: each is stored.
    waits: Mapping[str, Wait]
    transactions: LocalTransactions
    #: What the log holds for consumers, and when that was stored.
    copies: Sequence[tuple[str, int]]
    #: When what was delayed was stored.
    originals: Mapping[str, int]
    #: When it came to a listener first.
    arrivals: Mapping[str, int]

    @property
    def expected(self) -> set[str]:
        """What is to be delivered."""
        return {*self.waits, *committed(self.transactions)}

    def lateness(self, kind: Kind) -> list[int]:
        """How long after its time each copy of a kind was stored, in ascending order."""
        return sorted(
            stored - self.due(name) for name, stored in self.copies if name in self.waits and name.startswith(kind)
        )

    def due(self, name: str) -> int:
        """When the time of a message had come; one whose time was over need not have waited anywhere."""
        return self.waits[name].due(self.originals.get(name, 0))

    def report(self) -> str:
        """What there was to test, in words."""
        asked, fates = self.transactions.checks, Counter(self.transactions.fates.values())
        lines = [f"{len(self.waits):,} delayed messages, {len(self.transactions.fates):,} local transactions"]
        for kind in (Kind.LEVEL, Kind.TIMER):
            late = self.lateness(kind)
            shown = ", ".join(f"p{percent} {percentile(late, percent) / 1e6:.3f} s" for percent in (50, 90, 99, 100))
            lines.append(f"  {kind}: {len(late):,} delivered, late by {shown}")
        shown = ", ".join(f"{count:,} {fate}" for fate, count in sorted(fates.items()))
        lines.append(f"  {Kind.TRANSACTION}: {shown}; asked {asked.total():,} times about {len(asked):,}")
        return "\n".join(lines)


def check(outcome: Outcome) -> None:
    """All promises."""
    counts, expected = Counter(name for name, _ in outcome.copies), outcome.expected
    wrong = {name: counts[name] for name in {*counts, *expected} if counts[name] != (name in expected)}
    assert wrong == {}, "not delivered exactly once, or never sent, or rolled back"
    stored_early = {name: stored for name, stored in outcome.copies if is_early(outcome, name, stored)}
    assert stored_early == {}, "stored before its time"
    arrived_early = {name: at for name, at in outcome.arrivals.items() if is_early(outcome, name, at)}
    assert arrived_early == {}, "arrived before its time"
    assert set(outcome.arrivals) == expected


def is_early(outcome: Outcome, name: str, at: int) -> bool:
    """Whether this is before a message's time."""
    return name in outcome.waits and at < outcome.due(name)
