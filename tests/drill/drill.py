"""The drill itself: a cluster, its load, and one fault after another."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from mqdb.embedded.ports import HOST, is_free
from tests.drill import programs
from tests.drill.clients import ROOT, Launcher, LoadProcess
from tests.drill.cluster import PASSWORD, USER, Cluster, running_cluster
from tests.drill.consuming import GROUPS
from tests.drill.faults import FAULTS, Injected
from tests.drill.haproxy import HAPROXY, HOSTS, WAYS, hosts_dsn, running_haproxy
from tests.drill.journal import Journal
from tests.drill.judge import BACK_SECONDS, Judge, Verdict
from tests.drill.producing import LATE_TOPIC, TOPIC
from tests.drill.watch import Watch, alone_since
from tests.fixtures.processes import wait_until

_STEADY_SECONDS: Final = 60.0
#: A client with nothing in so many seconds does not work.
_SILENCE_SECONDS: Final = 3.0

_TABLES: Final = """
    CREATE TABLE public.own_row (name text NOT NULL);
    CREATE TABLE public.ledger (name text NOT NULL, group_name text NOT NULL);"""

Progress = Callable[[str], None]


class Drill:
    """A cluster under load."""

    def __init__(
        self,
        directory: Path,
        cluster: Cluster,
        dsns: dict[str, str],
        haproxy: str,
        launcher: Launcher,
        rocketmq: Path | None,
    ) -> None:
        """`rocketmq` is the Python of an environment with RocketMQ's client; without it that client is left out."""
        self._directory = directory
        self.cluster = cluster
        self._dsns = dsns
        self._haproxy = haproxy
        self._launcher = launcher
        self._processes: list[LoadProcess] = []
        self._rocketmq = rocketmq
        self.journal = Journal(directory, WAYS, ("rocketmq",) if rocketmq else ())
        self._watch = Watch(cluster)
        self._judge = Judge(cluster, self._watch, self.journal)
        self._starts = 0

    @contextmanager
    def running(self) -> Iterator["Drill"]:
        """Run the drill with topics, tables and all clients."""
        leader = self.cluster.leader()
        assert leader is not None
        dsn = leader.dsn(USER, PASSWORD)
        self._launcher.run("migrate", "--dsn", dsn)
        for topic in (TOPIC, LATE_TOPIC):
            self._launcher.run("topic", "create", topic, "--queues", "4", "--type", "mixed", "--dsn", dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_TABLES)
        self.cluster.checkpoint()
        with self._watch.running(), ExitStack() as stack:
            stack.callback(self.journal.close)
            stack.callback(self._end_load)
            self._start_load()
            yield self

    def run(
        self, fault: str, progress: Progress = lambda _text: None, inject: Callable[[Cluster], Injected] | None = None
    ) -> Verdict:
        """Run one fault and judge it. Clients that still stand still after the previous fault are restarted.

        `inject` replaces the function in FAULTS.
        """
        progress("waits until all clients work")
        self.cluster.wait_until_healthy()
        if not self._wait_until_steady():
            progress("starts the clients anew")
            self._end_load()
            self._start_load()
            assert self._wait_until_steady(), f"idle: {self._idle()}"
        marks = {process: process.mark() for process in self._processes}
        progress("injects the fault")
        began = time.monotonic()
        injected = (inject or FAULTS[fault])(self.cluster)
        progress("waits until the cluster is healthy")
        self.cluster.wait_until_healthy()
        progress("waits for the clients")
        # Each has this time, and is to go on after it.
        healthy = time.monotonic()
        while time.monotonic() < healthy + BACK_SECONDS + _SILENCE_SECONDS and (
            self._idle() or time.monotonic() < healthy + _SILENCE_SECONDS
        ):
            threading.Event().wait(0.5)
        self._wait_for_reign(began)
        progress("counts messages")
        return self._judge.judge(Verdict(fault, self._haproxy), began, injected, marks)

    def _wait_for_reign(self, began: float) -> None:
        """Wait until the last leader has been the only one for long enough, and clients had time to use it."""
        while (reigns := self._watch.reigns(began)) and time.monotonic() - alone_since(reigns) < BACK_SECONDS + 1:
            threading.Event().wait(0.5)

    # -- the load ---------------------------------------------------------------------------------

    def _start_load(self) -> None:
        self._starts += 1
        for way, dsn in self._dsns.items():
            arguments = ["mqdb", "serve", "--log-format", "json", "--dsn", dsn]
            self._processes.append(self._launcher.start(f"{way}-serve-{self._starts}", 1, arguments))
        for way, dsn in self._dsns.items():
            for name, clients, ending in (("producing", 3, "attempts"), ("consuming", len(GROUPS), "records")):
                options = {"dsn": dsn, "client": way, "path": str(self._directory / f"{way}.{ending}")}
                arguments = [f"tests.drill.{name}", json.dumps(options)]
                self._processes.append(self._launcher.start(f"{way}-{name}-{self._starts}", clients, arguments))

            if self._rocketmq is not None:
                self._start_rocketmq(way, dsn, self._rocketmq)

    def _start_rocketmq(self, way: str, dsn: str, python: Path) -> None:
        front = f"{HOST}:{programs.free_port()}"
        arguments = ["mqdb", "remoting", "--log-format", "json", "--address", front, "--dsn", dsn]
        self._processes.append(self._launcher.start(f"{way}-front-{self._starts}", 1, arguments))
        files = {ending: str(self._directory / f"{way}.{ending}") for ending in ("attempts", "records")}
        options = json.dumps({"front": front, "client": way, **files})
        wait_until(lambda: not is_free(int(front.rpartition(":")[2])))
        name = f"{way}-rocketmq-{self._starts}"
        self._processes.append(
            self._launcher.start(name, 1, ["tests.drill.rocketmq_client", options], python=str(python))
        )

    def _end_load(self) -> None:
        ends = [threading.Thread(target=process.end) for process in self._processes]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        self._processes = []

    def _wait_until_steady(self) -> bool:
        deadline = time.monotonic() + _STEADY_SECONDS
        while self._idle() and time.monotonic() < deadline:
            threading.Event().wait(0.5)
        return not self._idle()

    def _idle(self) -> list[str]:
        """Clients that have done nothing lately, and processes that have exited."""
        self.journal.look()
        since = time.monotonic() - _SILENCE_SECONDS
        idle = [
            str(client)
            for client in self.journal.clients()
            if not (moments := self.journal.moments(client)) or moments[-1] < since
        ]
        return idle + [process.name for process in self._processes if process.has_ended]


@contextmanager
def running_drill(
    directory: Path,
    *,
    nodes: int = 3,
    shuts_sessions: bool = True,
    is_synchronous: bool = True,
    checkout: Path = ROOT,
    rocketmq: Path | None = None,
    has_archive: bool = False,
) -> Iterator[Drill]:
    """A drill with this many nodes whose clients are those of a checkout.

    Logs and records are written to the directory.
    """
    with (
        running_cluster(nodes, is_synchronous=is_synchronous, has_archive=has_archive) as cluster,
        running_haproxy(cluster, shuts_sessions=shuts_sessions) as dsn,
    ):
        haproxy = "with shutdown-sessions" if shuts_sessions else "without shutdown-sessions"
        dsns = {HAPROXY: dsn, HOSTS: hosts_dsn(cluster)}
        launcher = Launcher(directory, checkout)
        with Drill(directory, cluster, dsns, haproxy, launcher, rocketmq).running() as drill:
            yield drill
