"""Three groups under load, while their members, the broker processes and PostgreSQL are killed with -9 at random.

    at-least-once   its listener fails and hangs; each message is consumed, or dead
    in-order        its listener fails; nothing comes again from before a committed offset
    exactly-once    its listener writes a row for each message; there is one of each, or the message is dead

Every run prints its seed and what it has met. The usual run is short; a long one, with other seeds each time:

    MQDB_FAULT_RUNS=5 MQDB_FAULT_SECONDS=120 MQDB_FAULT_KILLS=12 pytest tests/acceptance/test_consumer_faults.py

MQDB_FAULT_SEED is the seed of the first run: of what is killed when, and of which deliveries fail. What is under way at
that moment depends on the machine as well.
"""

import itertools
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest

from mqdb.settings import load_settings
from mqdb.topic import SCHEDULE_TOPIC, dlq_topic
from mqdb_client import Producer
from tests.fixtures.fault_group import Event, FaultGroup, Record
from tests.fixtures.fault_load import OffsetSampler, Sender
from tests.fixtures.fault_order import check_offsets, check_order
from tests.fixtures.fault_trouble import Trouble, killed, replay_told, wait_while
from tests.fixtures.faults import FaultyBroker, GroupMembers, faulty_broker
from tests.fixtures.log import create_topic
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import query

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "1"))
#: Of load, at least.
SECONDS: Final = float(os.environ.get("MQDB_FAULT_SECONDS", "8"))
#: Of members, of broker processes and of PostgreSQL each; and so many members join or leave.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "2"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

#: A run goes on until then: with less it has tested nothing.
LEAST_ACKNOWLEDGED: Final = int(100 * SECONDS)

_QUEUES: Final = 4

# Until nothing is left to consume: retries, locks that expire, and a machine that does other things as well.
_DRAIN_SECONDS: Final = 90.0


def groups_of(seed: int) -> list[FaultGroup]:
    """The exactly-once group consumes in order with every other seed."""
    in_order = bool(seed % 2)
    return [
        FaultGroup(name="at-least-once", fails=0.1, hangs=0.01, hopeless=0.01),
        FaultGroup(name="in-order", orderly=True, fails=0.1, hopeless=0.01),
        FaultGroup(
            name="exactly-once",
            transactional=True,
            orderly=in_order,
            batch_max_size=4,
            fails=0.04,
            # A lock must outlast a listener whose broker is gone.
            hangs=0.0 if in_order else 0.003,
            hopeless=0.005,
        ),
    ]


# -- trouble ------------------------------------------------------------------------------------


class GroupTrouble(Trouble):
    """Kills members as well, and has members come and go; all of them at random moments."""

    def __init__(self, chance: random.Random, broker: FaultyBroker, groups: list[GroupMembers]) -> None:
        super().__init__(chance, broker, partial(wait_until_all_consume, groups))
        self._groups = groups
        self._turns = itertools.cycle(chance.sample(groups, len(groups)))

    def acts(self) -> Sequence[Callable[[], None]]:
        return [*super().acts(), self._move_member, self._kill_member]

    def _kill_member(self) -> None:
        group = next(self._turns)
        self.note(f"killed {group.kill(self.chance)}")
        self.kills["member"] += 1
        if len(group.members) < 2:
            self.note(f"{group.join()} joins")

    def _move_member(self) -> None:
        group = self.chance.choice(self._groups)
        if len(group.members) < 3:
            self.note(f"{group.join()} joins")
        else:
            self.note(f"{group.begin_to_leave(self.chance)} leaves")


# -- the test -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(240 + 3 * SECONDS + 30 * KILLS)
@pytest.mark.parametrize("run", range(RUNS))
def test_groups_keep_their_promises_whatever_is_killed(
    run: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = FIRST_SEED + run
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(tmp_path))
        groups = [GroupMembers(group, broker.dsn, seed, tmp_path) for group in groups_of(seed)]
        trouble = GroupTrouble(random.Random(seed), broker, groups)
        again = f"MQDB_FAULT_SEED={seed} MQDB_FAULT_SECONDS={SECONDS:g} MQDB_FAULT_KILLS={KILLS}"
        stack.enter_context(replay_told(again, trouble.story, tmp_path))
        for group in groups:
            stack.callback(group.clean_up)
        prepare(broker, groups)

        acknowledged = consume_under_faults(broker, groups, trouble)

        outcomes = [outcome_of(group, acknowledged[group.group.name], broker.dsn) for group in groups]
        assert broker.end() == [0, 0]
        with capsys.disabled():
            print(f"\nseed {seed}: {report(outcomes, trouble.kills)}")  # noqa: T201
        for outcome in outcomes:
            check(outcome)
        assert [line for group in groups for line in group.unexpected()] == []


def prepare(broker: FaultyBroker, groups: list[GroupMembers]) -> None:
    """Topics, the table that transactions write to, two members in each group, and two broker processes."""
    with psycopg.connect(broker.dsn, autocommit=True) as connection:
        for group in groups:
            create_topic(connection, group.group.name, _QUEUES)
        connection.execute("CREATE TABLE public.business (name text NOT NULL, member text NOT NULL)")
    for group in groups:
        group.join()
        group.join()
    broker.start_serving()
    broker.start_serving()


def consume_under_faults(broker: FaultyBroker, groups: list[GroupMembers], trouble: Trouble) -> dict[str, list[str]]:
    """Returns when all is consumed; the messages that were acknowledged, by topic."""
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


def wait_until_all_consume(groups: list[GroupMembers]) -> None:
    """Until each has taken some messages more."""
    least = [group.successes + 10 for group in groups]

    def idle() -> list[str]:
        for group in groups:
            group.look()
        return [group.group.name for group, count in zip(groups, least, strict=True) if group.successes < count]

    wait_while(idle, 60, "consume nothing")


# One statement and so one snapshot: what a group has sent back is in a later step of its way, or in none.
_LEFT: Final = """
    SELECT 'not dispatched', (SELECT count(*) FROM mqdb.commit_log) - (SELECT count(*) FROM mqdb.consume_queue)
    UNION ALL
    SELECT 'waiting', (SELECT count(*) FROM mqdb.message WHERE topic = %s)
        - (SELECT coalesce(sum(reached), 0) FROM (SELECT max(next_offset) FROM mqdb.delay_offset GROUP BY level)
            AS level (reached))
    UNION ALL
    SELECT format('queues of %%s', group_name), %s - count(*) FILTER (WHERE lag = 0)
    FROM mqdb.consumer_lag GROUP BY group_name"""


def wait_until_consumed(dsn: str, groups: list[GroupMembers]) -> None:
    """Until all that was sent or sent back is consumed or dead, and committed."""

    def left() -> dict[str, int]:
        for group in groups:
            group.look()
        # Each group has its topic, and one queue for what comes again.
        rows = query(dsn, _LEFT, SCHEDULE_TOPIC, _QUEUES + 1)
        assert len(rows) == 2 + len(groups)
        return {what: int(count) for what, count in rows if count}

    wait_while(left, _DRAIN_SECONDS, "not consumed")


# -- the promises -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What has become of the messages of a group; each is called by its name."""

    group: FaultGroup
    history: list[Record]
    acknowledged: list[str]
    dead: list[str]
    #: What the transactions of its listener have committed.
    rows: list[str]

    @property
    def taken(self) -> Counter[str]:
        """How often a listener has said that it has consumed a message."""
        return Counter(record.name for record in self.history if record.event is Event.SUCCEEDED)


def outcome_of(group: GroupMembers, acknowledged: list[str], dsn: str) -> Outcome:
    """When all of its members have left."""
    assert set(group.end().values()) == {0}
    group.look()
    name = group.group.name
    dead = query(dsn, "SELECT text FROM mqdb.message WHERE topic = %s", dlq_topic(name))
    rows = query(dsn, "SELECT name FROM public.business") if group.group.transactional else []
    return Outcome(group.group, group.history, acknowledged, [name for (name,) in dead], [name for (name,) in rows])


def check(outcome: Outcome) -> None:
    """All promises that are made to the group."""
    if outcome.group.transactional:
        check_exactly_once(outcome)
    else:
        check_at_least_once(outcome)
    check_offsets(outcome.history)
    if outcome.group.orderly:
        check_order(outcome.history, set(outcome.dead))


def check_at_least_once(outcome: Outcome) -> None:
    """Each message was consumed, or is dead."""
    found = {*outcome.taken, *outcome.dead}
    assert set(outcome.acknowledged) - found == set(), "lost"
    assert found - set(outcome.acknowledged) == set(), "never sent"


def check_exactly_once(outcome: Outcome) -> None:
    """Each message was consumed or is dead, never both, and once."""
    counts = Counter(outcome.rows + outcome.dead)
    wrong = {name: counts[name] for name in {*counts, *outcome.acknowledged} if counts[name] != 1}
    assert wrong == {}
    assert counts.keys() == set(outcome.acknowledged), "never sent"


# -- the report ---------------------------------------------------------------------------------


def report(outcomes: list[Outcome], kills: Counter[str]) -> str:
    """What there was to test, in words."""
    total = sum(len(outcome.acknowledged) for outcome in outcomes)
    lines = [f"kills: {killed(kills)}; {total:,} messages acknowledged (at least {LEAST_ACKNOWLEDGED:,})"]
    for outcome in outcomes:
        group, taken = outcome.group, outcome.taken
        order = " in order" if group.orderly and group.transactional else ""
        failures = sum(record.event is Event.FAILED for record in outcome.history)
        lines.append(
            f"  {group.name}{order}: {len(outcome.acknowledged):,} acknowledged, {failures:,} failures, "
            f"{len(outcome.dead):,} dead, {taken.total() - len(taken):,} taken again, "
            f"longest gap in a queue {longest_gap(outcome):.1f} s"
        )
    return "\n".join(lines)


def longest_gap(outcome: Outcome) -> float:
    """In seconds between two messages of one queue that a listener has taken; not of the queue of retries."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for record in outcome.history:
        if record.event is Event.SUCCEEDED and record.queue.startswith(outcome.group.name):
            times[record.queue].append(record.seconds)
    gaps = (later - earlier for queue in times.values() for earlier, later in itertools.pairwise(queue))
    return max(gaps, default=0.0)
