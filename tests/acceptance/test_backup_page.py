"""The commands of docs/backup.md work on a Patroni cluster, and clients of all kinds continue after the restore."""

import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from tests.drill import programs
from tests.drill.cluster import Cluster, Node
from tests.drill.drill import running_drill
from tests.drill.faults import Injected
from tests.fixtures.command_line import Place
from tests.fixtures.deploy_tools import DEPLOY
from tests.fixtures.processes import wait_until

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "backup.md"
DATA: Final = "/var/lib/postgresql/15/mqdb"
COPY: Final = "/var/lib/postgresql/15/copy"
COPY_DSN: Final = "postgresql://postgres@/mqdb?host=/var/run/postgresql&port=5433"
TARGET: Final = "2026-11-29 03:13:56+00"

#: Messages that are sent after the point in time, and lost.
_MORE_SECONDS: Final = 3.0


class Step(NamedTuple):
    """A block of commands, and the nodes on which they run."""

    section: str
    nodes: str
    commands: list[str]


def steps() -> Iterator[Step]:
    for section in PAGE.read_text().split("\n## ")[1:]:
        title = section.partition("\n")[0]
        for nodes, block in re.findall(r"```bash\n# on ([^\n]+)\n(.*?)```", section, re.DOTALL):
            yield Step(title, nodes, block.splitlines())


class Operator:
    """Follows the page on a cluster with other directories and ports."""

    def __init__(self, cluster: Cluster, place: Place) -> None:
        """`place` runs the mqdb commands."""
        self._cluster = cluster
        self._place = place
        self._port = programs.free_port()
        self._repository = programs.make_directory(cluster.home / "repository")
        #: That of a restored server: the back-up has the settings of the node on which it was made.
        self._sockets = cluster.nodes[0].home
        self.target = ""
        self.told: list[str] = []
        self.has_looked = False

    def configure(self) -> None:
        """Use the file from deploy/ with the directories of the first node, on which the backups are made."""
        node = self._cluster.nodes[0]
        text = (DEPLOY / "patroni" / "pgbackrest.conf").read_text()
        for theirs, ours in (
            ("/var/lib/pgbackrest", str(self._repository)),
            (DATA, str(node.data)),
            ("pg1-port=5432", f"pg1-port={node.port}\npg1-user=postgres"),
            ("/var/run/postgresql", str(node.home)),
            ("log-level-file=detail", f"log-level-file=off\nlock-path={self._repository}/lock"),
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        config = self._cluster.pgbackrest
        assert config is not None
        config.write_text(text)
        programs.give(config)

    def follow(self, section: str) -> None:
        """Run all commands of a section; returns when Patroni is ready for the next step."""
        found = [step for step in steps() if step.section == section]
        assert found
        for step in found:
            for node in self._nodes(step.nodes):
                for command in step.commands:
                    self._run(node, command)
            if "systemctl start patroni" in step.commands:
                wait_until(lambda: self._cluster.leader() is self._cluster.nodes[0], 60)

    def _nodes(self, words: str) -> list[Node]:
        if words == "the leader":
            leader = self._cluster.leader()
            assert leader is self._cluster.nodes[0]
            return [leader]
        return self._cluster.nodes if words == "all nodes" else [*map(self._cluster.node, re.findall(r"pg\d", words))]

    def _run(self, node: Node, command: str) -> None:
        if command.startswith("systemctl"):
            return node.stop() if "stop" in command else node.start()
        command = self._here(node, command)
        if command.startswith("mqdb "):
            self.told.append(self._place.done(*shlex.split(command)[1:]))
            return self._look_at_copy(node)
        if "patronictl" in command:
            command = f"printf 'mqdb\\nYes I am aware\\n' | {command}"
        port = re.search(r"psql -p (\d+)", command)
        environment = {
            "PGHOST": str(self._sockets if port else node.home),
            "PGPORT": port.group(1) if port else str(node.port),
            "PGUSER": "postgres",
            "PGBACKREST_CONFIG": str(self._cluster.pgbackrest),
            "PATH": os.pathsep.join([str(programs.PG_BIN), os.environ["PATH"], "/usr/sbin"]),
        }
        # pg_ctl leaves a server behind, which would hold a pipe open.
        out = self._repository / "told"
        settings = [f"{key}={value}" for key, value in environment.items()]
        done = programs.run(["/usr/bin/env", *settings, "/bin/sh", "-c", f"{{ {command}\n}} >{out} 2>&1"], node.home)
        told = out.read_text()
        self.told.append(f"$ {command}\n{told}")
        assert done.returncode == 0, self.told[-1]
        if "pg_is_in_recovery" in command and "f" not in told.split():
            # The server takes connections while it recovers.
            time.sleep(0.5)
            return self._run(node, command)
        return None

    def _here(self, node: Node, text: str) -> str:
        """The page's text with the directories, the port and the time of this cluster."""
        for theirs, ours in (
            (DATA, str(node.data)),
            (COPY, str(node.home / "copy")),
            ("/etc/patroni/config.yml", str(node.config)),
            ("/var/run/postgresql", str(self._sockets)),
            ("/usr/lib/postgresql/15/bin", str(programs.PG_BIN)),
            ("5433", str(self._port)),
            (TARGET, self.target),
        ):
            text = text.replace(theirs, ours)
        return text

    def _look_at_copy(self, node: Node) -> None:
        """Check the copy: no broker process serves it, nothing is archived from it.

        The log of the copy ends at the point in time.
        """
        dsn = self._here(node, COPY_DSN)
        refused = self._place.run("serve", "--dsn", dsn)
        assert refused.code == 1
        assert "is a standby, or set to read-only; the primary is needed" in refused.errors
        with psycopg.connect(dsn) as connection:
            [timeline] = one(connection, "SELECT timeline_id FROM pg_control_checkpoint()")
            [is_over] = one(connection, f"SELECT max(store_time) > '{self.target}' FROM mqdb.message")
            assert one(connection, "SELECT setting FROM pg_settings WHERE name = 'archive_mode'") == ("off",)
        assert is_over is False
        assert not [*self._repository.rglob(f"{timeline:08X}*")]
        self.has_looked = True

    def restore(self, cluster: Cluster) -> Injected:
        """Restore to a past point in time, as a fault of the drill."""
        time.sleep(_MORE_SECONDS)
        self.follow("Restore to a point in time")
        return Injected()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_backs_up_and_restores_under_load(tmp_path: Path) -> None:
    if (missing := programs.missing()) is not None:
        if os.environ.get("MQDB_REQUIRE_DEPLOY_TOOLS"):
            pytest.fail(missing)
        pytest.skip(missing)
    with running_drill(tmp_path, has_archive=True) as drill:
        operator = Operator(drill.cluster, Place(tmp_path))
        operator.configure()
        operator.follow("Set up")
        operator.follow("Back up")
        operator.target = point_in_time(drill.cluster)
        operator.follow("A copy beside the cluster")
        assert operator.has_looked
        operator.target = point_in_time(drill.cluster)
        moment = time.monotonic()

        verdict = drill.run("restore", inject=operator.restore)

        told = "".join(operator.told)
        lost = [name for names in vars(verdict.lost).values() for name in names]
        assert lost, f"the restore means nothing: {verdict} {told}"
        assert [name for name in lost if drill.journal.attempts[name].ended < moment] == [], told
        verdict.lost.unexplained.clear()
        assert verdict.complaints() == [], told
        data = drill.cluster.nodes[0].data
        assert "archive_mode" not in (data / "postgresql.auto.conf").read_text()
        shutil.rmtree(data.with_name("data.before"))


def point_in_time(cluster: Cluster) -> str:
    leader = cluster.leader()
    assert leader is not None
    with psycopg.connect(leader.dsn(), autocommit=True) as connection:
        return str(*one(connection, "SELECT clock_timestamp()::text"))


def one(connection: psycopg.Connection[Any], statement: str) -> tuple[Any, ...]:
    """The only row of a statement."""
    [row] = connection.execute(statement)
    return tuple(row)
