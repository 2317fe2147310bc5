"""Three groups under load, while their members, the broker processes and PostgreSQL are killed with -9 at random.

    at-least-once   the listener fails and hangs; each message is consumed or dead
    in-order        the listener fails; no message before a committed offset is consumed again
    exactly-once    the listener writes a row for each message; each message has one row or is dead

Every run prints its seed and its faults. The usual run is short; a long run, with other seeds each time:

    MQDB_FAULT_RUNS=5 MQDB_FAULT_SECONDS=120 MQDB_FAULT_KILLS=12 pytest tests/acceptance/test_consumer_faults.py

MQDB_FAULT_SEED is the seed of the first run: it decides which process is killed when, and which deliveries fail. The
work under way at each kill also depends on the machine.
"""

import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from mqdb.settings import load_settings
from mqdb_client import Producer
from tests.fixtures.fault_group import Event, groups_of
from tests.fixtures.fault_load import OffsetSampler, Sender
from tests.fixtures.fault_outcome import Outcome, check, longest_gap, outcome_of, prepare, wait_until_consumed
from tests.fixtures.fault_trouble import GroupTrouble, Trouble, killed, replay_told, wait_until_all_consume
from tests.fixtures.faults import FaultyBroker, GroupMembers, faulty_broker
from tests.fixtures.processes import wait_until

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "0"))
#: Of load, at least.
SECONDS: Final = float(os.environ.get("MQDB_FAULT_SECONDS", "8" if RUNS else "1.5"))
#: Of members, of broker processes and of PostgreSQL each; and so many members join or leave.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "2" if RUNS else "1"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

#: A run goes on until then: with less it has tested nothing.
LEAST_ACKNOWLEDGED: Final = int(100 * SECONDS)


# -- the test -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(240 + 3 * SECONDS + 30 * KILLS)
@pytest.mark.parametrize("run", range(RUNS or 1))
@pytest.mark.parametrize("kind", ["threads", pytest.param("asyncio", marks=pytest.mark.long)])
def test_groups_keep_their_promises_whatever_is_killed(
    run: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = FIRST_SEED + run
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(tmp_path))
        groups = [GroupMembers(group, broker.dsn, seed, tmp_path, kind) for group in groups_of(seed)]
        trouble = GroupTrouble(random.Random(seed), broker, groups)
        again = f"MQDB_FAULT_SEED={seed} MQDB_FAULT_SECONDS={SECONDS:g} MQDB_FAULT_KILLS={KILLS}"
        stack.enter_context(replay_told(again, trouble.story, tmp_path))
        for group in groups:
            stack.callback(group.clean_up)
        prepare(broker, groups, 2)

        acknowledged = consume_under_faults(broker, groups, trouble)

        outcomes = [outcome_of(group, acknowledged[group.group.name], broker.dsn) for group in groups]
        assert broker.end() == [0, 0]
        with capsys.disabled():
            print(f"\nseed {seed}: {report(outcomes, trouble.kills)}")  # noqa: T201
        for outcome in outcomes:
            check(outcome)
        assert [line for group in groups for line in group.unexpected()] == []


def consume_under_faults(broker: FaultyBroker, groups: list[GroupMembers], trouble: Trouble) -> dict[str, list[str]]:
    """Returns when every message is consumed; the result is the acknowledged messages by topic."""
    settings = load_settings(dsn=broker.dsn, send_message_timeout=timedelta(seconds=2))
    with OffsetSampler(broker.dsn, groups):
        with Producer("senders", settings=settings) as producer, ExitStack() as stack:
            topics = [group.group.name for group in groups]
            senders = {topic: stack.enter_context(Sender(producer, topic)) for topic in topics}
            wait_until_all_consume(groups)
            began = time.monotonic()
            trouble.run(SECONDS, KILLS)
            threading.Event().wait(max(began + SECONDS - time.monotonic(), 0))
            wait_until(lambda: sum(len(each.acknowledged) for each in senders.values()) >= LEAST_ACKNOWLEDGED, 60)
        wait_until_consumed(broker.dsn, groups)
    return {topic: sender.acknowledged for topic, sender in senders.items()}


# -- the report ---------------------------------------------------------------------------------


def report(outcomes: list[Outcome], kills: Counter[str]) -> str:
    """A summary of the run in words."""
    total = sum(len(outcome.acknowledged) for outcome in outcomes)
    lines = [f"kills: {killed(kills)}; {total:,} messages acknowledged (at least {LEAST_ACKNOWLEDGED:,})"]
    for outcome in outcomes:
        group, taken = outcome.group, outcome.taken
        order = " in order" if group.orderly and group.exactly_once else ""
        failures = sum(record.event is Event.FAILED for record in outcome.history)
        lines.append(
            f"  {group.name}{order}: {len(outcome.acknowledged):,} acknowledged, {failures:,} failures, "
            f"{len(outcome.dead):,} dead, {taken.total() - len(taken):,} taken again, "
            f"longest gap in a queue {longest_gap(outcome):.1f} s"
        )
    return "\n".join(lines)
