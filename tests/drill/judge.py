"""The verdict on a fault: lost, skipped and repeated messages, clients that stood still, and long logs."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from tests.drill.attempts import Result
from tests.drill.clients import LoadProcess, LogMark
from tests.drill.cluster import Cluster, Node
from tests.drill.faults import Injected
from tests.drill.haproxy import HOSTS
from tests.drill.journal import ClientName, Journal
from tests.drill.losses import History, Lost, explain, was_told_by_a_lost_leader
from tests.drill.order import Place, disorder
from tests.drill.producing import LATE_TOPIC, TOPIC
from tests.drill.watch import Reign, Watch
from tests.fixtures.fault_group import Record
from tests.fixtures.processes import wait_until

BACK_SECONDS: Final = 15.0
WARNINGS: Final = 20

#: Until messages that were acknowledged are in the consume queues, and consumers have what is there.
_DRAIN_SECONDS: Final = 40.0
#: A group that has had nothing for so long stands still.
_SILENCE_SECONDS: Final = 5.0
#: These commits wait for synchronous standbys: a producer that asks for it, and transactions of the application.
_WAIT_FOR_STANDBYS: Final = ("master", "own", "exactly-once")


@dataclass
class Verdict:
    """The verdict on one fault."""

    fault: str
    haproxy: str
    #: The longest pause of each client, in seconds, and the longest while there was a leader.
    standstill: dict[ClientName, float] = field(default_factory=dict)
    under_a_leader: dict[ClientName, float] = field(default_factory=dict)
    #: The clients among them whose commits wait for the synchronous standby that was away.
    waiting: set[ClientName] = field(default_factory=set)
    lost: Lost = field(default_factory=Lost)
    #: By group: messages that it has not had although it goes on.
    skipped: dict[str, list[str]] = field(default_factory=dict)
    #: By group: how many messages wait for a group that stands still.
    behind: dict[str, int] = field(default_factory=dict)
    #: By group: deliveries to an orderly consumer that break the order of their queue.
    disorder: dict[str, list[Record]] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    #: Effects that do not fit to the messages.
    effects: list[str] = field(default_factory=list)
    #: They were told to be not stored, and are.
    denied: list[str] = field(default_factory=list)
    #: The same, by a leader whose timeline Patroni has thrown away.
    denied_by_lost_leader: list[str] = field(default_factory=list)
    #: By process: the lines for each client in it.
    warnings: dict[str, float] = field(default_factory=dict)
    tracebacks: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    #: The reigns of leaders since the fault, for people.
    story: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """Each broken promise in words; [] if all promises were kept."""
        found = [
            f"{client}: {seconds:.1f} s without an acknowledgement or a message although there was a leader"
            for client, seconds in self.under_a_leader.items()
            if seconds > BACK_SECONDS
        ]
        if self.lost.unexplained:
            found.append(f"lost: {len(self.lost.unexplained)}, among them {self.lost.unexplained[:5]}")
        found += [f"skipped by {group}: {len(names)}, {names[:5]}" for group, names in self.skipped.items()]
        found += [f"{group} stands still, and {count} messages wait for it" for group, count in self.behind.items()]
        found += [
            f"out of order for {group}: {len(wrong)}, first {first.name} at {first.queue_offset} of {first.queue}"
            for group, wrong in self.disorder.items()
            for first in wrong[:1]
        ]
        found += [f"stored twice: {self.twice[:5]}"] if self.twice else []
        found += self.effects
        found += [f"told to be not stored: {self.denied[:5]}"] if self.denied else []
        found += [
            f"{process}: {lines:.0f} lines of WARNING for each client"
            for process, lines in self.warnings.items()
            if lines > WARNINGS
        ]
        found += [f"{process}: {count} tracebacks" for process, count in self.tracebacks.items() if count]
        return found + [f"{process} has ended" for process in self.ended]


class Judge:
    """Checks the effects of a fault. A message that an earlier fault has lost is not counted again."""

    def __init__(self, cluster: Cluster, watch: Watch, journal: Journal) -> None:
        self._cluster = cluster
        self._watch = watch
        self._journal = journal
        self._known_lost: set[str] = set()
        self._known_denied: set[str] = set()

    def judge(
        self,
        verdict: Verdict,
        began: float,
        injected: Injected,
        marks: dict[LoadProcess, LogMark],
    ) -> Verdict:
        """Judge a fault once the cluster is healthy again; the fault was injected at `began`."""
        self._judge_pauses(verdict, began, injected)
        for process, mark in marks.items():
            trouble = process.trouble(mark)
            verdict.warnings[process.name] = len(trouble.warnings) / max(process.clients, 1)
            verdict.tracebacks[process.name] = trouble.tracebacks
            verdict.ended += [process.name] if process.has_ended else []
        self._judge_messages(verdict, began)
        return verdict

    # -- pauses --------------------------------------------------------------------------

    def _judge_pauses(self, verdict: Verdict, began: float, injected: Injected) -> None:
        self._journal.look()
        now = time.monotonic()
        reigns = self._watch.reigns(began)
        verdict.story = [
            f"{each.node} on timeline {each.timeline} from {each.began - began:.1f} to {each.ended - began:.1f} s"
            for each in reigns
        ]
        # The time before the fault does not count.
        since_fault = [Reign(each.node, each.timeline, max(each.began, began), each.ended) for each in reigns]
        for client in self._journal.clients():
            verdict.standstill[client] = self._journal.standstill(client, began, now)
            asked = reigns_asked(since_fault, injected, client.way)
            pauses = [self._journal.standstill_in(client, each) for each in asked]
            waits = client.kind in _WAIT_FOR_STANDBYS
            if waits and injected.was_awaited:
                verdict.waiting.add(client)
                dropped = self._watch.named_until(injected.node, began)
                pauses = [self._journal.standstill_in(client, Reign("", 0, dropped, asked[-1].ended))]
            elif waits and injected.was_orphaned and client.way == HOSTS and self._cluster.is_synchronous:
                # Its standbys have gone over to the other primary.
                verdict.waiting.add(client)
            verdict.under_a_leader[client] = max(pauses, default=now - began)

    # -- messages --------------------------------------------------------------

    def _judge_messages(self, verdict: Verdict, began: float) -> None:
        moment = time.monotonic()
        acknowledged = {
            name: each for name, each in self._journal.acknowledged(moment).items() if name not in self._known_lost
        }
        stored = self._stored()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while acknowledged.keys() - {name for places in stored.values() for name in places}:
            if time.monotonic() > deadline:
                break
            time.sleep(2)
            stored = self._stored()
        names = {name for places in stored.values() for name in places}
        lost = {name: each for name, each in acknowledged.items() if name not in names}
        history, reigns = self._history(), self._watch.reigns(0)
        sightings = {name: self._watch.sightings(name) for name in lost}
        verdict.lost = explain(lost, sightings, reigns, history)
        of_second = Counter(f"{lost[name].client} {lost[name].kind}" for name in verdict.lost.second_primary)
        if of_second:
            counts = ", ".join(f"{count} of {who}" for who, count in sorted(of_second.items()))
            verdict.story.append(f"lost by a second primary: {counts}")
        self._known_lost |= lost.keys()
        verdict.twice = [name for places in stored.values() for name, found in places.items() if len(found) > 1]
        denied = {
            name: attempt
            for name, attempt in self._journal.attempts.items()
            if attempt.result is Result.REFUSED and name in names and name not in self._known_denied
        }
        for name, attempt in denied.items():
            is_excused = was_told_by_a_lost_leader(attempt, reigns, history)
            (verdict.denied_by_lost_leader if is_excused else verdict.denied).append(name)
        self._known_denied |= denied.keys()
        verdict.effects = self._wrong_effects()
        for group, missing in self._undelivered({topic: set(places) for topic, places in stored.items()}).items():
            if self._journal.last_delivery(group) > time.monotonic() - _SILENCE_SECONDS:
                verdict.skipped[group] = missing
            else:
                verdict.behind[group] = len(missing)
        for group, records in self._journal.orderly().items():
            # An earlier verdict has told of the others.
            wrong = [each for each in disorder(records, stored[TOPIC]) if each.seconds >= began]
            if wrong:
                verdict.disorder[group] = wrong

    def _connect(self) -> psycopg.Connection[Any]:
        wait_until(lambda: self._cluster.leader() is not None, _DRAIN_SECONDS)
        return psycopg.connect(self._leader.dsn(), autocommit=True, connect_timeout=5)

    @property
    def _leader(self) -> Node:
        leader = self._cluster.leader()
        assert leader is not None
        return leader

    def _stored(self) -> dict[str, dict[str, list[Place]]]:
        """The places of each message, by topic and message."""
        found: dict[str, defaultdict[str, list[Place]]] = {
            TOPIC: defaultdict(list),
            LATE_TOPIC: defaultdict(list),
        }
        with self._connect() as connection:
            rows = connection.execute(
                "SELECT topic, text, queue_id, queue_offset FROM mqdb.message WHERE topic IN (%s, %s)",
                [TOPIC, LATE_TOPIC],
            )
            for topic, body, queue_id, queue_offset in rows:
                found[topic][body].append(Place(f"{topic}:{queue_id}", queue_offset))
        return {topic: dict(places) for topic, places in found.items()}

    def _undelivered(self, stored: dict[str, set[str]]) -> dict[str, list[str]]:
        """The messages that each group has not received although there was time."""

        def left() -> dict[str, list[str]]:
            self._journal.look()
            return {
                group: names
                for topic, of_topic in stored.items()
                for group in self._journal.groups(topic)
                if (names := self._journal.undelivered(group, of_topic))
            }

        deadline = time.monotonic() + _DRAIN_SECONDS
        while left() and time.monotonic() < deadline:
            time.sleep(0.5)
        return left()

    def _wrong_effects(self) -> list[str]:
        """Rows of transactions that do not match the messages, all read in one snapshot."""
        with self._connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            messages = {body for (body,) in connection.execute("SELECT encode(body, 'escape') FROM mqdb.commit_log")}
            own = {name for (name,) in connection.execute("SELECT name FROM public.own_row")}
            ledger = Counter(connection.execute("SELECT group_name, name FROM public.ledger").fetchall())
        found = [f"row without its message: {name}" for name in own - messages]
        found += [f"message without its row: {name}" for name in messages - own if "-own-" in name]
        found += [f"effect {count} times: {row}" for row, count in ledger.items() if count > 1]
        found += [f"effect of no message: {row}" for row in ledger if row[1] not in messages]
        return found

    def _history(self) -> History:
        with self._connect() as connection:
            row = connection.execute("SELECT pg_walfile_name(pg_current_wal_lsn())").fetchone()
        assert row is not None
        timeline = int(row[0][:8], 16)
        return History(timeline, self._leader.switch_points(timeline))


def reigns_asked(reigns: Sequence[Reign], injected: Injected, way: str) -> list[Reign]:
    """The reigns, if long enough, in which clients of a way are expected to work.

    HAProxy leaves a primary without Patroni at once. A client whose DSN lists all hosts may stay with that primary, and
    must come back once it has ended.
    """
    if injected.was_orphaned:
        orphaned = [each.ended for each in reigns if each.node == injected.node]
        since = max(orphaned, default=0.0) if way == HOSTS else 0.0
        others = [each for each in reigns if each.node != injected.node]
        reigns = [Reign(each.node, each.timeline, max(each.began, since), each.ended) for each in others]
    return [each for each in reigns if each.ended - each.began >= BACK_SECONDS]
