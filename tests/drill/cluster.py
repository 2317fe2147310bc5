"""A Patroni cluster on loopback, made from deploy/patroni/patroni.yml with other addresses and directories."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
import yaml
from psycopg import sql

from mqdb.embedded.leftovers import end_server
from mqdb.embedded.ports import HOST
from mqdb.embedded.process import ServerProcess
from tests.drill import programs
from tests.fixtures.deploy_tools import DEPLOY
from tests.fixtures.postgres import quick_home
from tests.fixtures.processes import wait_until

SCOPE: Final = "mqdb"
USER: Final = "mqdb"
PASSWORD: Final = "drill"
DATABASE: Final = "mqdb"
SUPERUSER_PASSWORD: Final = "change-me-superuser"

#: For a machine that does other things as well.
_START_SECONDS: Final = 120.0
_HEALTHY_SECONDS: Final = 120.0

#: The cluster may lose its disk, unlike that of an operator.
_LOCAL_PARAMETERS: Final = {"fsync": "off", "shared_buffers": "64MB"}


class Etcd:
    """An etcd that can be stopped for a while."""

    def __init__(self, home: Path) -> None:
        self.address = f"{HOST}:{programs.free_port()}"
        self._peers = f"http://{HOST}:{programs.free_port()}"
        self._home = programs.make_directory(home / "etcd")
        self._process: ServerProcess | None = None

    def start(self) -> None:
        url = f"http://{self.address}"
        command = [programs.program("etcd"), "--name=drill", f"--data-dir={self._home}/data", "--log-level=error"]
        command += [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
        command += [f"--listen-peer-urls={self._peers}", f"--initial-advertise-peer-urls={self._peers}"]
        command += [f"--initial-cluster=drill={self._peers}"]
        self._process = programs.start(command, self._home, self._home / "log")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()


class Node:
    """A PostgreSQL with its Patroni."""

    def __init__(self, name: str, home: Path, etcd: Etcd, pgbackrest: Path | None, *, is_synchronous: bool) -> None:
        """`pgbackrest` is its configuration; without it nothing is archived."""
        self.name = name
        self._is_synchronous = is_synchronous
        self._pgbackrest = pgbackrest
        self.port = programs.free_port()
        self.api_port = programs.free_port()
        self.home = programs.make_directory(home / name)
        self.data = self.home / "data"
        self.config = self.home / "patroni.yml"
        self.log = self.home / "patroni.log"
        self._process: ServerProcess | None = None
        self.config.write_text(yaml.safe_dump(self._configuration(etcd)))
        programs.give(self.config)

    def _configuration(self, etcd: Etcd) -> dict[str, Any]:
        """The configuration file from deploy/ with this node's addresses and directories, and without a watchdog."""
        text = (DEPLOY / "patroni" / "patroni.yml").read_text()
        # The user who runs the tests may have another name.
        text = text.replace("10.0.0.0/8", f"{HOST}/32").replace("local all postgres peer", "local all postgres trust")
        made: dict[str, Any] = yaml.safe_load(text)
        made["name"] = self.name
        api, address = f"{HOST}:{self.api_port}", f"{HOST}:{self.port}"
        made["restapi"] |= {"listen": api, "connect_address": api}
        made["etcd3"]["hosts"] = etcd.address
        made["bootstrap"]["dcs"]["synchronous_mode"] = self._is_synchronous
        parameters = made["bootstrap"]["dcs"]["postgresql"]["parameters"]
        parameters["max_connections"] = 300
        if self._pgbackrest is None:
            parameters["archive_command"] = "true"
        made["postgresql"] |= {
            "listen": address,
            "connect_address": address,
            "data_dir": str(self.data),
            "bin_dir": str(programs.PG_BIN),
            "pgpass": str(self.home / "pgpass"),
            "parameters": {"unix_socket_directories": str(self.home), **_LOCAL_PARAMETERS},
        }
        made["watchdog"]["mode"] = "off"
        return made

    def start(self) -> None:
        # The archive_command of its PostgreSQL finds the file so.
        setting = [f"PGBACKREST_CONFIG={self._pgbackrest}"] if self._pgbackrest else []
        command = ["/usr/bin/env", *setting, programs.program("patroni"), str(self.config)]
        self._process = programs.start(command, self.home, self.log)

    def stop(self) -> None:
        """Stop Patroni and PostgreSQL, whatever their state."""
        self.wake()
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        end_server(self.data)

    def dsn(self, user: str = "postgres", password: str = SUPERUSER_PASSWORD, database: str = DATABASE) -> str:
        return f"postgresql://{user}:{password}@{HOST}:{self.port}/{database}"

    # -- faults -----------------------------------------------------------------------

    @property
    def postmaster(self) -> psutil.Process:
        return psutil.Process(int((self.data / "postmaster.pid").read_text().split("\n", 1)[0]))

    def kill_postgres(self) -> None:
        """Kill the postmaster with -9."""
        self.postmaster.kill()

    def kill_patroni(self) -> None:
        """Kill Patroni with -9. The node's PostgreSQL runs on without supervision until `start`."""
        process, self._process = self._process, None
        assert process is not None
        psutil.Process(process.pid).kill()
        process.exited.wait()

    def freeze(self) -> None:
        """Stop Patroni and all PostgreSQL processes with SIGSTOP; the kernel still answers for them."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def wake(self) -> None:
        """Resume the stopped processes."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def _processes(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                patroni = psutil.Process(self._process.pid)
                found += [patroni, *patroni.children(recursive=True)]
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ValueError):
            found += [self.postmaster, *self.postmaster.children(recursive=True)]
        return found

    def switch_points(self, timeline: int) -> dict[int, int]:
        """The history of a timeline on this node: the position at which each earlier timeline was left."""
        if timeline == 1:
            return {}
        lines = (self.data / "pg_wal" / f"{timeline:08X}.history").read_text().splitlines()
        parts = [line.split("\t") for line in lines if line.strip()]
        return {int(each[0]): lsn(each[1]) for each in parts}


def lsn(text: str) -> int:
    """A WAL position as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class Cluster:
    """The nodes and their etcd."""

    def __init__(self, home: Path, count: int, pgbackrest: Path | None = None, *, is_synchronous: bool = True) -> None:
        self.home = home
        self.pgbackrest = pgbackrest
        #: Patroni's synchronous_mode.
        self.is_synchronous = is_synchronous
        self.etcd = Etcd(home)
        self.nodes = [
            Node(f"pg{number}", home, self.etcd, pgbackrest, is_synchronous=is_synchronous)
            for number in range(1, count + 1)
        ]

    def start(self) -> None:
        """Start the cluster; returns when all nodes run, with mqdb's database and its owner."""
        self.etcd.start()
        first, *others = self.nodes
        first.start()
        wait_until(lambda: self.leader() is first, _START_SECONDS)
        for node in others:
            node.start()
        with psycopg.connect(first.dsn(database="postgres"), autocommit=True) as connection:
            # The standby of a commit is not there yet.
            connection.execute("SET synchronous_commit = local")
            connection.execute(sql.SQL("CREATE ROLE mqdb LOGIN PASSWORD {}").format(sql.Literal(PASSWORD)))
            connection.execute("CREATE DATABASE mqdb OWNER mqdb")
        self.wait_until_healthy()

    def stop(self) -> None:
        """Stop all nodes and etcd, whatever their state."""
        for node in self.nodes:
            node.stop()
        self.etcd.stop()

    def checkpoint(self) -> None:
        """Make every node write its present data to disk.

        A standby of PostgreSQL 15.18 or 18.4 that is promoted before its first restart point loses the page of an
        unlogged sequence ("bad magic number in sequence"), and mqdb has such a sequence. PostgreSQL 15.20 fixes this.
        """
        leader = self.leader()
        assert leader is not None
        with psycopg.connect(leader.dsn(), autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        self.wait_until_healthy()
        for node in self.nodes:
            with psycopg.connect(node.dsn(), autocommit=True) as connection:
                connection.execute("CHECKPOINT")

    # -- answers of Patroni ------------------------------------------------------------------------

    def members(self) -> list[dict[str, Any]]:
        """The members according to the first node that answers; [] if no node answers."""
        for node in self.nodes:
            with suppress(OSError, ValueError):
                url = f"http://{HOST}:{node.api_port}/cluster"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    return list(json.load(answer)["members"])
        return []

    def leader(self) -> Node | None:
        """The node that reports that it is the primary and holds the leader key, or None."""
        return next((node for node in self.nodes if self.is_primary(node)), None)

    def is_primary(self, node: Node) -> bool:
        """Make the same check as HAProxy."""
        request = urllib.request.Request(f"http://{HOST}:{node.api_port}/primary", method="OPTIONS")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def standby(self) -> Node:
        """The standby that commits wait for, or any standby if they wait for none."""
        role = "sync_standby" if self.is_synchronous else "replica"
        return self.node(next(each["name"] for each in self.members() if each["role"] == role))

    def wait_until_healthy(self) -> None:
        """Wait until there is one leader, all others stream from it, and, if required, commits wait for one of them."""
        wait_until(self._is_healthy, _HEALTHY_SECONDS)

    def _is_healthy(self) -> bool:
        members = self.members()
        leaders = [each for each in members if each["role"] == "leader"]
        if len(members) != len(self.nodes) or len(leaders) != 1 or self.leader() is None:
            return False
        followers = [each for each in members if each["role"] != "leader"]
        is_streaming = all(
            each["state"] in ("running", "streaming") and each.get("timeline") == leaders[0].get("timeline")
            for each in followers
        )
        return is_streaming and any(each["role"] == "sync_standby" for each in followers) == self.is_synchronous

    # -- commands of an operator --------------------------------------------------------------------

    def patronictl(self, *arguments: str) -> str:
        """Run patronictl with the first node's file; returns its output."""
        node = self.nodes[0]
        done = programs.run([programs.program("patronictl"), "-c", node.config, *arguments], node.home)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def running_cluster(count: int, *, is_synchronous: bool = True, has_archive: bool = False) -> Iterator[Cluster]:
    """A cluster with this many nodes, removed at the end.

    With an archive, the caller must write `Cluster.pgbackrest`.
    """
    with ExitStack() as stack:
        home = stack.enter_context(quick_home())
        archive = home / "pgbackrest.conf" if has_archive else None
        cluster = Cluster(home, count, archive, is_synchronous=is_synchronous)
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def clock() -> str:
    """The time as the logs have it."""
    return time.strftime("%H:%M:%S")
