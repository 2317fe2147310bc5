"""Work of all kinds on a database with hostile roles, short time-outs and a clock that jumps.

The loads of test_consumer_faults and test_schedule_faults run at the same time, while members, broker processes,
backends and PostgreSQL are killed with -9. At the same time, one after another or several at once:

    a role that may connect takes every advisory lock that it sees, and floods the channel with forged notifications
    a role that may insert into the log stores odd rows; a role that may create functions sets traps in `public`
    a large transaction commits behind other traffic; a role or database has short time-outs; all connections are taken
    the broker's clock is an hour ahead for a second, or goes forward by 20 s

No acknowledged message is skipped, each effect of an exactly-once listener exists once, and unrelated messages arrive.
Every run prints its seed and its faults. The usual run covers some kinds of trouble; these runs cover all of them, each
with another seed:

    MQDB_FAULT_RUNS=10 pytest tests/acceptance/test_hostile_faults.py

MQDB_FAULT_SEED is the seed of the first run; the work under way at each kill also depends on the machine.
"""

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
import pytest

from mqdb.settings import load_settings
from tests.fixtures import fault_schedule_outcome as schedule
from tests.fixtures.fault_group import groups_of
from tests.fixtures.fault_hostile import LARGE, PROBE, HostileTrouble, Neighbours, Probe
from tests.fixtures.fault_load import OffsetSampler, Sender
from tests.fixtures.fault_outcome import Outcome, check, outcome_of, prepare, wait_until_consumed
from tests.fixtures.fault_schedule import Arrivals, Kind
from tests.fixtures.fault_trouble import replay_told, wait_until_all_consume, wait_while
from tests.fixtures.faults import FaultyBroker, GroupMembers, faulty_broker
from tests.fixtures.log import create_topic, scalar
from tests.fixtures.serve import query
from tests.fixtures.traps import caught

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "0"))
#: Of load, at least.
SECONDS: Final = float(os.environ.get("MQDB_FAULT_SECONDS", "8" if RUNS else "1"))
#: How often each kind of trouble is met.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "1"))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

#: How many kinds of trouble; None for all.
ACTS: Final = None if RUNS else 6

#: Of what is delayed, timed or in a transaction.
MESSAGES: Final = int(30 * SECONDS)

_DRAIN_SECONDS: Final = 90.0

# Half messages are asked about soon and often.
_SETTINGS: Final = {"transaction_timeout": "1s", "transaction_check_interval": "1s", "transaction_check_max": 1_000}

# Records that have a queue, and no place in it.
_SKIPPED: Final = """
    SELECT count(*) FROM mqdb.commit_log cl JOIN mqdb.queue USING (queue_key)
    WHERE NOT EXISTS (SELECT FROM mqdb.consume_queue cq WHERE cq.log_pos = cl.log_pos)"""

# Queues in which a place is missing, or a record stands twice.
_TORN: Final = """
    SELECT queue_key FROM mqdb.consume_queue GROUP BY queue_key
    HAVING min(queue_offset) <> 0 OR max(queue_offset) + 1 <> count(*) OR count(DISTINCT log_pos) <> count(*)"""

_BULK: Final = """
    SELECT topic, convert_from(body, 'UTF8') FROM mqdb.commit_log
    JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
    WHERE topic = ANY (%s) AND substring(body FROM 1 FOR 4) = 'bulk'::bytea"""

# Timers of the hour in which the clock was ahead, that wait for it to come.
_FROM_AHEAD: Final = "SELECT text FROM mqdb.message WHERE topic = 'rmq_sys_wheel_timer' AND store_time > mqdb.now()"


@pytest.mark.long
@pytest.mark.timeout(300 + 5 * SECONDS + 60 * KILLS)
@pytest.mark.parametrize("run", range(RUNS or 1))
def test_nothing_is_skipped_on_a_database_where_others_are_hostile(
    run: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = FIRST_SEED + run
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(tmp_path, **_SETTINGS))
        groups = [GroupMembers(group, broker.dsn, seed, tmp_path) for group in groups_of(seed)]
        for group in groups:
            stack.callback(group.clean_up)
        neighbours = Neighbours(broker)
        trouble = HostileTrouble(random.Random(seed), broker, groups, neighbours, ACTS)
        again = f"MQDB_FAULT_RUNS={RUNS} MQDB_FAULT_SEED={seed} MQDB_FAULT_SECONDS={SECONDS:g} MQDB_FAULT_KILLS={KILLS}"
        stack.enter_context(replay_told(again, trouble.story, tmp_path))
        prepare(broker, groups, 1)
        with psycopg.connect(broker.dsn, autocommit=True) as connection:
            for kind in Kind:
                create_topic(connection, kind, 2)
        trouble.note("all is prepared")

        work = work_under_faults(seed, broker, groups, trouble, neighbours)

        outcomes = [
            outcome_of(group, work.acknowledged[group.group.name], neighbours.superuser_dsn) for group in groups
        ]
        trouble.note("all have left")
        assert broker.end() == [0, 0]
        result = Result.of(work, outcomes, trouble, neighbours)
        with capsys.disabled():
            print(f"\nseed {seed}: {result.report(trouble)}")  # noqa: T201
        assert result.skipped == 0
        for outcome in outcomes:
            check(outcome)
        schedule.check_once(work.scheduled)
        assert [line for group in groups for line in group.unexpected()] == []
        if trouble.kills["traps"]:
            check_traps(neighbours)


@dataclass(frozen=True)
class Work:
    """The sent messages and their outcomes."""

    #: By the topic of a group.
    acknowledged: Mapping[str, list[str]]
    scheduled: schedule.Outcome
    probe: Probe


def work_under_faults(
    seed: int, broker: FaultyBroker, groups: list[GroupMembers], trouble: HostileTrouble, neighbours: Neighbours
) -> Work:
    """Returns when every message has arrived."""
    settings = load_settings(dsn=broker.dsn, send_message_timeout=timedelta(seconds=2))
    topics = [group.group.name for group in groups]
    with ExitStack() as stack:
        stack.enter_context(OffsetSampler(neighbours.superuser_dsn, groups))
        arrivals = stack.enter_context(Arrivals(settings, [*Kind, PROBE]))
        probe = stack.enter_context(Probe(settings, arrivals))
        load = stack.enter_context(schedule.ScheduledLoad(settings, seed, MESSAGES, SECONDS))
        with ExitStack() as sending:
            senders = {topic: sending.enter_context(Sender(load.producer, topic)) for topic in topics}
            wait_until_all_consume(groups)
            began = time.monotonic()
            trouble.run(SECONDS, KILLS)
            threading.Event().wait(max(began + SECONDS - time.monotonic(), 0))
            wait_until_all_consume(groups)
            load.finish()
        trouble.note("all is sent")

        # All goes on, with the time-outs that are left, the traps and the odd rows: a large transaction of a calm hour.
        trouble.commit_large(random.Random(seed))
        wait_while(lambda: not has_leader(neighbours), _DRAIN_SECONDS, "nobody leads")
        wait_until_consumed(neighbours.superuser_dsn, groups)
        trouble.note("all is consumed")
        wait_until_all_have_come(neighbours, arrivals, load)
        probe.stop.set()
        wait_while(lambda: probe.missing, _DRAIN_SECONDS, "a probe does not arrive")
        scheduled = load.outcome(neighbours.superuser_dsn, arrivals)
    acknowledged = {topic: list(sender.acknowledged) for topic, sender in senders.items()}
    for topic, name in query(neighbours.superuser_dsn, _BULK, topics):
        acknowledged[topic].append(name)
    return Work(acknowledged, scheduled, probe)


def wait_until_all_have_come(neighbours: Neighbours, arrivals: Arrivals, load: schedule.ScheduledLoad) -> None:
    """Messages of the hour by which the clock was ahead arrive within that hour. Other messages do not wait for it."""
    wanted = {*load.waits, *schedule.committed(load.transactions)}
    waiting = {name for (name,) in query(neighbours.superuser_dsn, _FROM_AHEAD)} & load.timers.waits.keys()
    schedule.wait_until_all_have_come(arrivals, wanted - waiting, _DRAIN_SECONDS)
    schedule.wait_until_decided(neighbours.superuser_dsn, _DRAIN_SECONDS)
    neighbours.move_clock(3_700)
    schedule.wait_until_all_have_come(arrivals, wanted, _DRAIN_SECONDS)


def has_leader(neighbours: Neighbours) -> bool:
    """Whether a leader holds the lease of the services."""
    return bool(query(neighbours.superuser_dsn, "SELECT FROM mqdb.leader WHERE expires_at > mqdb.now()"))


def check_traps(neighbours: Neighbours) -> None:
    """The traps catch sessions that look into `public` first; they have caught no session of mqdb."""
    with neighbours.superuser() as superuser:
        superuser.execute("SET search_path = public, pg_catalog")
        superuser.execute("SELECT hashtextextended('a'::text, 0)")
        found = caught(superuser)
    assert found
    assert [each for each in found if str(each[2]).startswith("mqdb")] == []


@dataclass(frozen=True)
class Result:
    """The totals of a run."""

    acknowledged: int
    delivered: int
    skipped: int
    effects: int
    probes: int
    longest_probe: float
    longest_probe_of_large: float

    @classmethod
    def of(cls, work: Work, outcomes: Sequence[Outcome], trouble: HostileTrouble, neighbours: Neighbours) -> "Result":
        """The result, once everything is over."""
        expected, arrived = work.scheduled.expected, work.scheduled.arrivals
        found = [outcome.found & {*outcome.acknowledged} for outcome in outcomes]
        with neighbours.superuser() as superuser:
            undispatched = scalar(superuser, _SKIPPED)
            torn = superuser.execute(_TORN).fetchall()
            large = scalar(superuser, "SELECT count(*) FROM mqdb.message WHERE topic = %s", [LARGE])
        assert torn == []
        assert large >= trouble.large_rows
        probes = len(work.probe.times)
        acknowledged = sum(len(outcome.acknowledged) for outcome in outcomes) + len(expected) + probes
        delivered = sum(map(len, found)) + len(expected & arrived.keys()) + probes
        return cls(
            acknowledged + large,
            delivered + large,
            acknowledged - delivered + undispatched,
            sum(len(outcome.rows) for outcome in outcomes),
            probes,
            max(took for _, took in work.probe.times),
            work.probe.longest(*trouble.large),
        )

    def report(self, trouble: HostileTrouble) -> str:
        """The result in words."""
        return (
            f"acknowledged {self.acknowledged:,}, delivered {self.delivered:,}, skipped {self.skipped}, "
            f"effects {self.effects:,} (each once)\n"
            f"  of these {trouble.large_rows:,} in {len(trouble.large)} large transactions; {self.probes} probes, the "
            f"longest {self.longest_probe:.1f} s, that beside a large transaction {self.longest_probe_of_large:.1f} s\n"
            f"  {', '.join(f'{what} {count}' for what, count in sorted(trouble.kills.items()))}"
        )
