"""A whole log moves to another server, and its positions keep their meaning.

No message is delivered again, and no warning is logged.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest

from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.account import run_as, service_account
from mqdb.embedded.binaries import PostgresBinaries, find_postgres
from mqdb_client import errors
from tests.fixtures.consuming import WAYS, Consuming, Start, starting
from tests.fixtures.history import Past, with_orders
from tests.fixtures.postgres import quick_home
from tests.fixtures.processes import wait_until

MESSAGES: Final = 20


class Readers:
    """A consumer of every kind, each in a separate group."""

    def __init__(self, start: Start, past: Past, directory: Path) -> None:
        self._past, self._directory = past, directory
        self._readers = {way: start(way, group=way.replace(", ", "-").replace(" ", "-")) for way in WAYS}
        self._sent: list[str] = []

    def consume(self, *bodies: str) -> None:
        """Wait until each consumer has received these messages and committed them."""
        self._past.store(*bodies)
        self._sent += bodies
        for reader in self._readers.values():
            wait_until(partial(self._has_received, reader), 60)
            wait_until(partial(self._commit, reader))
        wait_until(self._have_committed, 30)

    def _commit(self, reader: Consuming) -> bool:
        """Commit, unless the client's connection still leads to the former database, which is gone."""
        try:
            reader.commit()
        except errors.BrokerUnavailable:
            return False
        return True

    def _has_received(self, reader: Consuming) -> bool:
        return set(self._sent) <= set(reader.bodies())

    def _have_committed(self) -> bool:
        in_file = self._past.committed(self._directory)
        with psycopg.connect(self._past.dsn) as connection:
            rows = connection.execute(
                "SELECT sum(next_offset) FROM mqdb.consumer_lag WHERE topic = 'orders' GROUP BY group_name"
            ).fetchall()
        count = len(self._sent)
        return in_file == count and rows == [(count,)] * (len(WAYS) - 1)

    def epochs(self) -> dict[tuple[int, int], int]:
        """The epochs of owned queues, by group and queue."""
        with psycopg.connect(self._past.dsn) as connection:
            rows = connection.execute(
                "SELECT group_id, queue_key, epoch FROM mqdb.consumer_offset WHERE owner IS NOT NULL"
            )
            return {(group_id, queue_key): epoch for group_id, queue_key, epoch in rows}

    def have_taken_again(self, before: dict[tuple[int, int], int]) -> bool:
        """Whether all consumers have noticed the server's restart.

        Messages that they poll earlier are delivered again.
        """
        now = self.epochs()
        return now.keys() == before.keys() and all(now[each] > before[each] for each in before)

    def check(self) -> None:
        """Check that each reader has received each message once.

        Exactly-once readers may receive a message again if its transaction was refused.
        """
        for way, reader in self._readers.items():
            received = set(reader.received) if "exactly once" in way else reader.received
            assert sorted(received) == sorted(self._sent), way


@contextmanager
def reading(past: Past, directory: Path, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """All consumers have read some messages before the block, and continue after it.

    The log mentions no other history.
    """
    with starting(past.dsn, directory) as start:
        readers = Readers(start, past, directory)
        readers.consume(*(f"before {number}" for number in range(MESSAGES)))
        before = readers.epochs()
        yield
        wait_until(partial(readers.have_taken_again, before), 60)
        readers.consume(*(f"after {number}" for number in range(MESSAGES)))
    readers.check()
    warnings = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert not [warning for warning in warnings if "history" in warning], warnings


@pytest.mark.long
def test_a_dump_that_is_restored_in_place_of_the_database(
    past: Past, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with reading(past, tmp_path, caplog):
        past.dump_and_restore()


@pytest.mark.long
def test_pg_upgrade_from_15_to_18(oldest: PostgresBinaries, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest = find_postgres(18, {})
    # An option of columns, since the releases of November 2026.
    news = b"pg_attver"
    if news in oldest.program("postgres").read_bytes() and news not in newest.program("postgres").read_bytes():
        pytest.skip(f"PostgreSQL {newest} is older than {oldest}, and does not know all that it writes")
    with quick_home() as home:
        old = EmbeddedPostgres(home, durable=False, binaries=oldest)
        with old:
            past = with_orders(old)
            with reading(past, tmp_path, caplog):
                port = old.port
                old.stop()
                upgrade(home, oldest, newest)
                past.server = EmbeddedPostgres(home, port=port, durable=False, binaries=newest)
                past.server.start()
            past.server.stop()


def upgrade(home: Path, old: PostgresBinaries, new: PostgresBinaries) -> None:
    """Replace the directory with a cluster made by pg_upgrade."""
    account = service_account()
    target, workplace = home / "upgraded", home / "workplace"
    workplace.mkdir()
    if account is not None:
        os.chown(workplace, account.uid, account.gid)
        os.chown(home, account.uid, account.gid)

    def run(program: str, *arguments: object) -> None:
        done = run_as(account, [new.program(program), *map(str, arguments)], cwd=workplace)
        assert done.returncode == 0, done.stdout + done.stderr

    like = ["--encoding", "UTF8", "--locale", "C", "--username", "postgres", "--no-sync", "--no-data-checksums"]
    run("initdb", "--pgdata", target, *like)
    hba = home / "data" / "pg_hba.conf"
    rules = hba.read_text()
    hba.write_text("local all all trust\n")
    bins = ["--old-bindir", old.bin_dir, "--new-bindir", new.bin_dir, "--socketdir", workplace]
    directories = ["--old-datadir", home / "data", "--new-datadir", target]
    run("pg_upgrade", *bins, *directories, "--username", "postgres", "--no-sync")
    (target / "pg_hba.conf").write_text(rules)
    shutil.rmtree(home / "data")
    target.rename(home / "data")
