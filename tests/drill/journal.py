"""Sends and deliveries of all clients of the drill, read from their files, and the pauses between them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from tests.drill.attempts import Attempt, AttemptFile, Result
from tests.drill.consuming import GROUPS
from tests.drill.producing import KINDS, TOPIC
from tests.drill.watch import Reign
from tests.fixtures.fault_group import Record, Records

#: Until a group that begins at the end has begun in all queues.
_BEGIN_SECONDS: Final = 10.0


class ClientName(NamedTuple):
    """A way to the cluster, and the kind of producer or consumer that uses it."""

    way: str
    kind: str
    is_consumer: bool

    def __str__(self) -> str:
        return f"{self.way} {self.kind} {'consumer' if self.is_consumer else 'producer'}"


class Journal:
    """The files of all clients, read as they grow."""

    def __init__(self, directory: Path, ways: Sequence[str], more_kinds: Sequence[str] = ()) -> None:
        """`more_kinds` are kinds beside KINDS and GROUPS; each is both a producer and a consumer of TOPIC."""
        self._attempt_files = {way: AttemptFile(directory / f"{way}.attempts") for way in ways}
        self._record_files = {way: Records(directory / f"{way}.records") for way in ways}
        #: The last attempt of each message counts.
        self.attempts: dict[str, Attempt] = {}
        #: By group: when each message was delivered.
        self.deliveries: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._ways = ways
        self._producers = [*KINDS, *more_kinds]
        self._groups = {**GROUPS, **dict.fromkeys(more_kinds, TOPIC)}
        self._acknowledged: defaultdict[ClientName, list[float]] = defaultdict(list)
        self._records: defaultdict[ClientName, list[Record]] = defaultdict(list)

    def look(self) -> None:
        """Read new lines."""
        for way, attempts in self._attempt_files.items():
            for attempt in attempts.read():
                earlier = self.attempts.get(attempt.name)
                # The time of a message is that of its send.
                began = earlier.began if earlier else attempt.began
                self.attempts[attempt.name] = attempt._replace(began=began)
                if attempt.result is Result.STORED:
                    self._acknowledged[ClientName(way, attempt.kind, False)].append(attempt.ended)
        for way, records in self._record_files.items():
            for record in records.read():
                self.deliveries[record.member][record.name].append(record.seconds)
                kind = record.member.removeprefix(f"{way}-")
                self._records[ClientName(way, kind, True)].append(record)

    def clients(self) -> list[ClientName]:
        """All expected clients."""
        producers = [ClientName(way, kind, False) for way in self._ways for kind in self._producers]
        return producers + [ClientName(way, kind, True) for way in self._ways for kind in self._groups]

    def groups(self, topic: str) -> list[str]:
        """All groups that consume a topic."""
        kinds = [kind for kind, consumed in self._groups.items() if consumed == topic]
        return [f"{way}-{kind}" for way in self._ways for kind in kinds]

    def undelivered(self, group: str, stored: set[str]) -> list[str]:
        """The stored messages that a group has not received.

        For a group that began at the end of the topic, only newer messages count.
        """
        deliveries = self.deliveries[group]
        missing = stored - deliveries.keys()
        if group.partition("-")[2] in GROUPS or not deliveries:
            return sorted(missing)
        since = min(min(moments) for moments in deliveries.values()) + _BEGIN_SECONDS
        return sorted(name for name in missing if name in self.attempts and self.attempts[name].began > since)

    def orderly(self) -> dict[str, list[Record]]:
        """All deliveries to each orderly consumer, in order, by group."""
        return {f"{way}-orderly": self._records[ClientName(way, "orderly", True)] for way in self._ways}

    def last_delivery(self, group: str) -> float:
        """The time of the group's last message, or 0 without messages."""
        return max((moment for moments in self.deliveries[group].values() for moment in moments), default=0.0)

    def moments(self, client: ClientName, sent_since: float = 0.0) -> list[float]:
        """The times at which a producer was acknowledged, or a consumer received a message sent after `sent_since`."""
        if not client.is_consumer:
            return self._acknowledged[client]
        unsent = float("inf")
        return [
            record.seconds
            for record in self._records[client]
            if (self.attempts[record.name].began if record.name in self.attempts else unsent) >= sent_since
        ]

    def standstill(self, client: ClientName, began: float, ended: float) -> float:
        """The longest pause between two moments that overlaps this period."""
        return longest_pause(self.moments(client), began, ended)

    def standstill_in(self, client: ClientName, reign: Reign) -> float:
        """The longest pause during a reign, or until the first moment in it."""
        moments = [moment for moment in self.moments(client, reign.began) if moment >= reign.began]
        return longest_pause([reign.began, *moments], reign.began, reign.ended)

    def acknowledged(self, before: float) -> dict[str, Attempt]:
        """The messages that their producers know to be stored."""
        return {
            name: each for name, each in self.attempts.items() if each.result is Result.STORED and each.ended <= before
        }

    def close(self) -> None:
        for attempts in self._attempt_files.values():
            attempts.close()
        for records in self._record_files.values():
            records.close()


def longest_pause(moments: Iterable[float], began: float, ended: float) -> float:
    """The longest pause in seconds between two successive moments; the last pause lasts at least until the end."""
    ordered = sorted(moments)
    pauses = [after - before for before, after in pairwise([*ordered, ended]) if after >= began and before <= ended]
    if not ordered:
        return ended - began
    return max(pauses, default=0.0)
