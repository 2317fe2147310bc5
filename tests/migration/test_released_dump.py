"""A database of each version, with data in it, is brought to head by `mqdb migrate`, and keeps all its data."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqdb
from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.account import postgres_environment
from mqdb.store import migrations
from mqdb_client import Admin, ConsumeFromWhere, Message, Producer, PushConsumer
from tests.fixtures.command_line import ROOT, Place, served
from tests.fixtures.consumers import Inbox
from tests.fixtures.postgres import Database, create_role, libpq_15, new_database, query
from tests.fixtures.processes import wait_until
from tests.migration.contents import contents
from tests.migration.make_dump import DUMPS, READER
from tests.migration.test_migrations import catalog, code

VERSIONS = sorted(path.name.removesuffix(".sql.gz") for path in DUMPS.glob("*.sql.gz"))

REMAKE = "the schema has changed since the dump: remake it by `python -m tests.migration.make_dump`"
FROZEN = "the schema of a released version has changed: restore its texts, and make a new revision with the change"


def dump_of(version: str) -> str:
    return gzip.decompress((DUMPS / f"{version}.sql.gz").read_bytes()).decode()


def heading_of(version: str) -> tuple[str, str]:
    """The revision and the schema fingerprint in a dump."""
    heading = re.match(r"-- mqdb \S+, schema (\S+), fingerprint (\S+)\n", dump_of(version))
    assert heading is not None
    return heading[1], heading[2]


def expected_of(version: str) -> Any:
    return json.loads(gzip.decompress((DUMPS / f"{version}.json.gz").read_bytes()))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def restored(version: str, postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database restored from the dump of a version."""
    if heading_of(version)[0] not in migrations._known():
        pytest.fail(REMAKE)
    create_role(postgres, READER, "secret")
    with new_database(postgres, "template0") as database:
        database.roles.append(READER)
        psql = str(postgres.binaries.program("psql"))
        done = subprocess.run(
            [
                psql,
                "--no-psqlrc",
                "--quiet",
                "--output=/dev/null",
                "--set=ON_ERROR_STOP=1",
                f"--dbname={libpq_15(database.dsn)}",
            ],
            input=dump_of(version).encode(),
            capture_output=True,
            env=postgres_environment(),
            check=False,
        )
        assert (done.returncode, done.stderr.decode()) == (0, "")
        yield database


def lacking(expected: Any, found: Any, where: str = "") -> list[str]:
    """The places where a value is missing or different. A later version may have more fields."""
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [f"{where}/{key} is missing" for key in expected.keys() - found.keys()]
        return missing + [
            line
            for key in expected.keys() & found.keys()
            for line in lacking(expected[key], found[key], f"{where}/{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for number, pair in enumerate(zip(expected, found, strict=True))
            for line in lacking(*pair, f"{where}/{number}")
        ]
    return [] if expected == found else [f"{where} is {found!r} and was {expected!r}"]


# -- the dump -----------------------------------------------------------------------------------


def test_there_is_a_dump_of_this_version_and_it_has_todays_schema() -> None:
    assert mqdb.__version__ in VERSIONS, "make the dump: `python -m tests.migration.make_dump`"

    revision, fingerprint = heading_of(mqdb.__version__)

    if revision[:4] == migrations.head()[:4]:
        advice = REMAKE if "." in migrations.head() else FROZEN
        assert fingerprint == migrations._fingerprint(), advice
        assert revision == migrations.head(), REMAKE


def test_a_dump_is_small_and_has_some_of_everything(version: str) -> None:
    expected = expected_of(version)

    assert sum(path.stat().st_size for path in DUMPS.glob(f"{version}.*")) < 300_000
    assert [subject for subject, found in expected.items() if not found] == []
    assert {half["state"] for half in expected["half_messages"]} == {"PREPARED", "COMMITTED", "ROLLED_BACK"}
    assert any(lag["in_flight"] for lags in expected["lags"].values() for lag in lags)
    assert any(lag["waiting"] for lags in expected["lags"].values() for lag in lags)
    # It names no place of the machine that made it.
    assert str(ROOT) not in dump_of(version)


# -- an upgrade ---------------------------------------------------------------------------------


def test_an_upgraded_dump_has_all_its_data(version: str, restored: Database, tmp_path: Path) -> None:
    assert migrations.head() in Place(tmp_path, restored.dsn).done("migrate")

    with Admin(restored.dsn) as admin:
        assert lacking(expected_of(version), contents(admin)) == []


def test_an_upgraded_dump_has_the_schema_of_a_new_database(restored: Database, empty_database: Database) -> None:
    migrations.upgrade(restored.dsn)
    migrations.upgrade(empty_database.dsn)

    migrated, made = schema_of(restored), schema_of(empty_database)
    assert sorted(set(migrated) - set(made)) == []
    assert sorted(set(made) - set(migrated)) == []


def schema_of(database: Database) -> list[str]:
    """Tables and functions, without rows and without the traces of a restore.

    PostgreSQL dumps expressions with other parentheses and more column names than in their source. Since version 18 it
    has NOT NULL constraints, whose names differ in a restored partition; the column lines contain NOT NULL anyway.
    """
    session = database.connect()
    lines = [line for line in catalog(session) if not re.match(r"constraint: \w+: NOT NULL", line)]
    lines += [line for line in code(session) if not line.startswith("row: ")]
    # pg_stat_get_activity has more columns in each new PostgreSQL.
    traces = re.compile(r"\ba\(datid, [^)]*\)| AS \w+|[()\s]+")
    return sorted(traces.sub("", line) for line in lines)


# -- an upgrade to a version that does not exist yet --------------------------------------------

NEXT = """
from alembic import op

from mqdb.store.migrations import head

revision, down_revision, branch_labels, depends_on = head(), "0100", None, None


def upgrade() -> None:
    op.execute("ALTER TABLE mqdb.topic ADD COLUMN note text")
    op.execute("CREATE FUNCTION mqdb.note_of(name text) RETURNS text "
               "RETURN (SELECT note FROM mqdb.topic WHERE topic = name)")
"""

#: mqdb with other migrations, of which 0101 is not released.
NEXT_MQDB = """
import sys
from pathlib import Path

from mqdb.store import migrations

scripts = Path(sys.argv[1])
migrations._scripts = lambda: scripts
migrations._UNRELEASED = "0101"

from mqdb.cli.app import run

sys.exit(run(sys.argv[2:]))
"""


@pytest.fixture
def next_mqdb(tmp_path: Path) -> list[str]:
    """The command line of an mqdb whose schema has one more revision."""
    scripts = tmp_path / "migrations"
    shutil.copytree(ROOT / "migrations", scripts, ignore=shutil.ignore_patterns("__pycache__"))
    first = scripts / "versions" / "0100_schema.py"
    first.write_text(re.sub(r"(?m)^revision = .*$", 'revision = "0100"', first.read_text("utf-8")), "utf-8")
    (scripts / "versions" / "0101_next.py").write_text(NEXT, "utf-8")
    return [sys.executable, "-c", NEXT_MQDB, str(scripts)]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process treat revision 0100 as released."""
    monkeypatch.setattr(migrations, "_UNRELEASED", None)
    migrations._known.cache_clear()
    migrations.head.cache_clear()
    yield
    monkeypatch.undo()
    migrations._known.cache_clear()
    migrations.head.cache_clear()


class Sender:
    """Sends to topic orders until it is stopped."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent: list[str] = []

    def _send(self) -> None:
        with Producer("senders", self._dsn) as producer:
            while not self._stopping.is_set():
                body = f"{self._name} {len(self.sent)}"
                producer.send(Message("orders", body))
                self.sent.append(body)

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[bytes]:
        """Stop sending; returns the sent bodies. Calling it twice does no harm."""
        self._stopping.set()
        self._thread.join()
        return [body.encode() for body in self.sent]

    def wait_for_more(self) -> None:
        """Wait for 20 more messages."""
        wanted = len(self.sent) + 20
        wait_until(lambda: len(self.sent) >= wanted)


def reader_of(dsn: str, group: str, inbox: Inbox) -> PushConsumer:
    consumer = PushConsumer(group, dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders", "*")
    consumer.register_listener(inbox)
    return consumer


@pytest.mark.parametrize("version", ["0.1.0"], indirect=True)
def test_clients_go_on_while_the_next_version_migrates(
    version: str, restored: Database, frozen: None, next_mqdb: list[str], tmp_path: Path
) -> None:
    query(restored.dsn, "UPDATE mqdb.alembic_version SET version_num = '0100'")
    of_the_dump = [message["body"].encode("latin-1") for message in expected_of(version)["messages"]["orders"]]
    inbox, late_inbox = Inbox(), Inbox()
    # To the client another address is another broker, and gets another instance with connections of its own.
    late = f"broker-a={restored.dsn}&application_name=late"

    with (
        served(Place(tmp_path, restored.dsn)),
        reader_of(restored.dsn, "readers", inbox),
        Sender(restored.dsn, "early") as sender,
    ):
        sender.wait_for_more()
        command = [*next_mqdb, "migrate", "--dsn", restored.dsn]
        migrated = subprocess.run(command, capture_output=True, text=True, check=False)
        sender.wait_for_more()
        with reader_of(late, "late_readers", late_inbox), Sender(late, "late") as late_sender:
            late_sender.wait_for_more()
            sender.wait_for_more()
            everything = Counter([*of_the_dump, *sender.stop(), *late_sender.stop()])
            wait_until(lambda: min(map(len, (inbox.messages, late_inbox.messages))) >= everything.total())

    assert (migrated.returncode, migrated.stderr) == (0, "")
    assert migrated.stdout.startswith("the schema went from 0100 to 0101.")
    assert Counter(message.body for message in inbox.messages) == everything
    assert Counter(message.body for message in late_inbox.messages) == everything
    assert query(restored.dsn, "SELECT mqdb.note_of('orders') IS NULL") is True
