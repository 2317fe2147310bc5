"""docs/upgrade.md, command by command: from PostgreSQL 15 to 18 by logical replication, with messages of all kinds."""

import os
import re
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import Connection, text

from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.account import postgres_environment
from mqdb.embedded.binaries import PostgresBinaries, find_postgres
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb_client import Admin, Message, Producer, TransactionProducer
from tests.fixtures.consuming import PUSH, WAYS, starting
from tests.fixtures.history import with_orders
from tests.fixtures.log import positions, small_segments
from tests.fixtures.postgres import quick_home, superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.transactions import COMMIT, UNKNOWN, Asked

ROOT: Final = Path(__file__).parents[3]

#: A slot that is made, filled and dropped before the new server has heard of it.
SHORT_LIVED_SLOT: Final = (
    "SELECT mqdb.add_timer_slot(7, 0, 1)",
    """INSERT INTO mqdb.timer SELECT (t.twin).* FROM (
           SELECT jsonb_populate_record(t, '{"slot": 7}') AS twin FROM mqdb.timer t LIMIT 1) t""",
    "DROP TABLE mqdb.timer_7",
    "DELETE FROM mqdb.timer_slot WHERE slot = 7",
)


class Page:
    """The commands of the page, for two servers."""

    def __init__(self, old: EmbeddedPostgres, new: EmbeddedPostgres, directory: Path) -> None:
        page = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
        self._sections = dict(part.partition("\n")[::2] for part in page.split("\n## ")[1:])
        self._directory = directory
        (directory / "deploy").symlink_to(ROOT / "deploy")
        programs = f"{new.binaries.bin_dir}{os.pathsep}{os.environ['PATH']}"
        addresses = {"OLD": superuser_dsn(old, "mqdb"), "NEW": superuser_dsn(new, "mqdb")}
        self._environment = postgres_environment() | addresses | {"PATH": programs}

    def run(self, section: str) -> None:
        """Run all commands of a section, except those that set the addresses of the servers."""
        for block in re.findall(r"```sh\n(.*?)```", self._sections[section], re.DOTALL):
            if not block.startswith("export"):
                done = self.call("bash", "-e", "-c", block)
                assert done.returncode == 0, block + done.stdout + done.stderr

    def call(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command; returns its output."""
        return subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, text=True, check=False
        )


def enter(body: str, connection: Connection) -> None:
    """The effect of an exactly-once listener."""
    connection.execute(text("INSERT INTO ledger (body) VALUES (:body)"), {"body": body})


def read(dsn: str, directory: Path, received: dict[str, list[str]], count: int) -> None:
    """Let a consumer of each kind read until it has received `count` messages in all, and leave."""
    with starting(dsn, directory) as start:
        for way in WAYS:
            effect = {"effect": enter} if "exactly once" in way else {}
            reader = start(way, group=re.sub(r"\W+", "-", way), **effect)
            before = received.setdefault(way, [])

            def has_all(reader=reader, before=before) -> bool:  # type: ignore[no-untyped-def]
                return len(before) + len(reader.bodies()) >= count

            wait_until(has_all, 60)
            reader.commit()
            if way in (*PUSH, "broadcasting"):
                reader.consumer.shutdown()
            before += reader.received


@pytest.mark.long
def test_an_upgrade_by_logical_replication(
    oldest: PostgresBinaries, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"wal_level": "logical", "shared_buffers": "32MB"}
    with (
        quick_home() as old_home,
        quick_home() as new_home,
        EmbeddedPostgres(old_home, durable=False, binaries=oldest, settings=settings) as old,
        EmbeddedPostgres(new_home, durable=False, binaries=find_postgres(18, {})) as new,
    ):
        upgrade(old, new, tmp_path, caplog)


def upgrade(old: EmbeddedPostgres, new: EmbeddedPostgres, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_orders(old).create_topic("later")
    page, received, sent = Page(old, new, directory), dict[str, list[str]](), list[str]()
    with psycopg.connect(old.dsn, autocommit=True) as connection:
        small_segments(connection, 16, ahead=3)
        connection.execute("CREATE TABLE ledger (entry serial PRIMARY KEY, body text)")
        connection.execute("UPDATE mqdb.delay_level SET delay = '25 s' WHERE level = 2")

    def send(producer: Producer, *bodies: str) -> None:
        for body in bodies:
            producer.send(Message("orders", body, keys=(f"key-{body}",)))
        sent.extend(bodies)

    # On the old server, before and while rows are copied.
    with Server(load_settings(dsn=old.dsn)), Producer("senders", old.dsn) as producer:
        send(producer, *(f"read-{number}" for number in range(20)))
        read(old.dsn, directory, received, len(sent))
        send(producer, *(f"unread-{number}" for number in range(20)))
        producer.send(Message("later", "in days", deliver_at=datetime.now(UTC) + timedelta(days=2)))
        page.run("Prepare")
        page.run("Copy")
        send(producer, *(f"meanwhile-{number}" for number in range(40)))
        producer.send(Message("later", "in months", deliver_at=datetime.now(UTC) + timedelta(days=60)))
        with psycopg.connect(old.dsn, autocommit=True) as connection:
            wait_until(lambda: connection.execute("SELECT FROM mqdb.timer HAVING count(*) = 2").fetchone() is not None)
            for statement in SHORT_LIVED_SLOT:
                connection.execute(statement)
        asked = Asked(executed=UNKNOWN, checked=UNKNOWN)
        with TransactionProducer("halves", listener=asked, settings=load_settings(dsn=old.dsn)) as halves:
            halves.send_in_transaction(Message("later", "half"))
        producer.send(Message("later", "level", delay_level=2))
        producer.send(Message("later", "timer", deliver_at=datetime.now(UTC) + timedelta(seconds=25)))

    page.run("Take over")

    with psycopg.connect(old.dsn) as connection, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("SELECT mqdb.send('orders', 'too late'::text)")
    with psycopg.connect(new.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT FROM mqdb.message WHERE topic = 'later'").fetchall() == []
        [lost] = connection.execute("DELETE FROM ledger WHERE entry = 1 RETURNING body").fetchall()
        compared = page.call("deploy/upgrade/upgrade.sh", "compare")
        assert (compared.returncode, compared.stderr.splitlines()[1]) == (1, "public.ledger|40")
        connection.execute("INSERT INTO ledger (entry, body) VALUES (1, %s)", lost)
        check_new(new.dsn, directory, received, sent, connection)
    assert not [record.getMessage() for record in caplog.records if "history" in record.getMessage()]


def check_new(
    dsn: str, directory: Path, received: dict[str, list[str]], sent: list[str], connection: psycopg.Connection[Any]
) -> None:
    def later() -> set[str]:
        return {body for (body,) in connection.execute("SELECT text FROM mqdb.message WHERE topic = 'later'")}

    asked = Asked(executed=UNKNOWN, checked=COMMIT)
    settings = load_settings(dsn=dsn, transaction_timeout="1s", transaction_check_interval="1s")
    with (
        Server(settings),
        Producer("senders", dsn) as producer,
        TransactionProducer("halves", listener=asked, settings=settings),
        Admin(dsn) as admin,
    ):
        for number in range(20):
            producer.send(Message("orders", f"after-{number}"))
            sent.append(f"after-{number}")
        read(dsn, directory, received, len(sent))
        wait_until(lambda: later() == {"half", "level", "timer"}, 60)
        assert admin.messages.find("orders", key="key-unread-3")
        admin.topics.create("payments")

    for way, bodies in received.items():
        assert Counter(bodies) == Counter(sent), way
    ledger = Counter(body for (body,) in connection.execute("SELECT body FROM ledger"))
    assert ledger == Counter(sent + sent)  # of two groups
    keys = connection.execute(
        "SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = 'orders'"
    )
    for (key,) in keys.fetchall():
        assert positions(connection, key) == sorted(positions(connection, key))
