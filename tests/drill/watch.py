"""Observes each node of a cluster ten times a second, without Patroni, HAProxy or mqdb in between.

Each observation of a primary records its timeline, its WAL position, and its stored messages. So the server, timeline
and position of a message that the cluster has lost can be determined afterwards.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg

from tests.drill.cluster import Cluster, Node, lsn

_PAUSE_SECONDS: Final = 0.1
#: Looks that are farther apart do not belong to one reign.
_GAP_SECONDS: Final = 2.0

#: More than come between two looks. The bodies of the drill are ASCII.
_LATEST: Final = """
    SELECT encode(body, 'escape') FROM mqdb.commit_log
    WHERE log_pos > (SELECT coalesce(max(log_pos), 0) - 300 FROM mqdb.commit_log)"""

_STATE: Final = """
    SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'),
        CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END,
        CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn()::text END"""


@dataclass
class Reign:
    """A period in which a node answered as a primary without a gap."""

    node: str
    timeline: int
    began: float
    ended: float


def alone_since(reigns: Sequence[Reign]) -> float:
    """The time since which the last primary has been the only one.

    A frozen primary that wakes may be a second one for a moment.
    """
    last = max(reigns, key=lambda each: each.ended)
    return max([last.began, *(each.ended for each in reigns if each is not last)])


class Sighting(NamedTuple):
    """An observation of a message on a primary, committed between two WAL positions of a timeline."""

    node: str
    timeline: int
    after: int
    until: int


class Watch:
    """Threads that observe each node."""

    def __init__(self, cluster: Cluster) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._reigns: list[Reign] = []
        self._sightings: dict[str, list[Sighting]] = {}
        #: What the primary says of synchronous_standby_names, when it changes.
        self._synchronous: list[tuple[float, str]] = []
        self._threads = [
            threading.Thread(target=self._run, args=(node,), name=f"watch {node.name}", daemon=True)
            for node in cluster.nodes
        ]

    @contextmanager
    def running(self) -> Iterator["Watch"]:
        """Observe the nodes during the block. A thread that waits for a frozen server ends with the process."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(2)

    def reigns(self, since: float) -> list[Reign]:
        """The reigns that ended after `since`, and those that began later."""
        with self._lock:
            return [
                Reign(each.node, each.timeline, each.began, each.ended) for each in self._reigns if each.ended >= since
            ]

    def sightings(self, name: str) -> list[Sighting]:
        """The sightings of a message; [] if the message was not seen."""
        with self._lock:
            return self._sightings.get(name, [])[:]

    def named_until(self, standby: str, since: float) -> float:
        """When the primary stopped waiting for a standby; `since` if the primary did not wait for it."""
        with self._lock:
            changes = [moment for moment, names in self._synchronous if moment > since and standby not in names]
            return min(changes, default=time.monotonic())

    def _run(self, node: Node) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            with suppress(psycopg.Error), psycopg.connect(node.dsn(), autocommit=True, connect_timeout=2) as connection:
                self._look_on(node, connection)

    def _look_on(self, node: Node, connection: psycopg.Connection[Any]) -> None:
        reign: Reign | None = None
        before = 0
        known: set[str] = set()
        while not self._stop.is_set():
            row = connection.execute(_STATE).fetchone()
            assert row is not None
            is_standby, names, file, position = row
            if is_standby:
                reign, known = None, set()
            else:
                now, timeline, here = time.monotonic(), int(file[:8], 16), lsn(position)
                with self._lock:
                    if reign is None or reign.timeline != timeline or now - reign.ended > _GAP_SECONDS:
                        reign, before, known = Reign(node.name, timeline, now, now), 0, set()
                        self._reigns.append(reign)
                    if not self._synchronous or self._synchronous[-1][1] != names:
                        self._synchronous.append((now, names))
                # Without the schema there is nothing to lose.
                with suppress(psycopg.errors.UndefinedTable):
                    # After the position: what is found was committed before the next one.
                    latest = {body for (body,) in connection.execute(_LATEST)}
                    until = self._position(connection)
                    with self._lock:
                        reign.ended = now
                        for body in latest - known:
                            sighting = Sighting(node.name, timeline, before, until)
                            self._sightings.setdefault(body, []).append(sighting)
                    before, known = here, latest
            if self._stop.wait(_PAUSE_SECONDS):
                return

    def _position(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return lsn(row[0])
