"""Delayed, timer and transactional messages, while two broker processes and PostgreSQL are killed with -9 at random.

Each message is delivered exactly once and not before its time; rolled-back messages are never delivered. Every run
prints its seed and its faults. The usual run is short; a long run, with other seeds each time:

    MQDB_FAULT_RUNS=5 MQDB_FAULT_KILLS=10 MQDB_FAULT_MESSAGES=50000 pytest tests/acceptance/test_schedule_faults.py

MQDB_FAULT_SEED is the seed of the first run: it decides which process is killed when, how long each message waits, and
how each transaction ends. The work under way at each kill also depends on the machine.
"""

import os
import random
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest

from mqdb.settings import load_settings
from tests.fixtures.fault_schedule import DELAY_LEVELS, Arrivals, Kind, Wait
from tests.fixtures.fault_schedule_outcome import (
    Outcome,
    ScheduledLoad,
    check_once,
    check_times,
    committed,
    wait_until_all_have_come,
    wait_until_decided,
    wait_until_each_kind_arrives,
)
from tests.fixtures.fault_trouble import Trouble, killed, replay_told
from tests.fixtures.faults import FaultyBroker, faulty_broker
from tests.fixtures.log import create_topic

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "1"))
#: Of broker processes and of PostgreSQL each, at least.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "1"))
#: Of all kinds together, at least.
MESSAGES: Final = int(os.environ.get("MQDB_FAULT_MESSAGES", "1000" if RUNS > 1 else "300"))
#: Of load, about.
SECONDS: Final = float(os.environ.get("MQDB_FAULT_SECONDS", str(max(2.0 * KILLS, MESSAGES / 500))))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

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
        trouble = Trouble(random.Random(seed), broker, partial(wait_until_each_kind_arrives, arrivals, _DRAIN_SECONDS))
        again = f"MQDB_FAULT_SEED={seed} MQDB_FAULT_MESSAGES={MESSAGES} MQDB_FAULT_KILLS={KILLS}"
        stack.enter_context(replay_told(again, trouble.story, tmp_path))

        outcome = send_under_faults(seed, broker, trouble, arrivals)

        assert broker.end() == [0, 0]
        with capsys.disabled():
            print(f"\nseed {seed}: kills: {killed(trouble.kills)}; {outcome.report()}")  # noqa: T201
        check_once(outcome)
        check_times(outcome)
        assert min(trouble.kills["serve"], trouble.kills["PostgreSQL"]) >= KILLS
        assert len(outcome.waits) + len(outcome.transactions.fates) >= MESSAGES * 0.9


def prepare(broker: FaultyBroker) -> None:
    """A topic for each kind, and two broker processes."""
    with psycopg.connect(broker.dsn, autocommit=True) as connection:
        for kind in Kind:
            create_topic(connection, kind, _QUEUES)
    broker.start_serving()
    broker.start_serving()


def send_under_faults(seed: int, broker: FaultyBroker, trouble: Trouble, arrivals: Arrivals) -> Outcome:
    """Returns when every expected message has arrived, and no half message is left."""
    settings = load_settings(dsn=broker.dsn, send_message_timeout=timedelta(seconds=2))
    with ScheduledLoad(settings, seed, MESSAGES, SECONDS) as load:
        trouble.run(SECONDS, KILLS)
        load.finish()
        wait_until_all_have_come(arrivals, [*load.waits, *committed(load.transactions)], _DRAIN_SECONDS)
        wait_until_decided(broker.dsn, _DRAIN_SECONDS)

        # Whoever serves now finds nothing that it would deliver again.
        broker.kill_processes(broker.serving)
        trouble.start_serving()
        load.levels.send("level:last", Wait(level=1))
        load.timers.send("timer:last", Wait(delay_ms=1_000))
        wait_until_all_have_come(arrivals, load.waits, _DRAIN_SECONDS)
        return load.outcome(broker.dsn, arrivals)
