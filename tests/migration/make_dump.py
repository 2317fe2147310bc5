"""A dump of the present schema with data of every kind, from which the tests of later versions upgrade.

    python -m tests.migration.make_dump

Writes `dumps/VERSION.sql.gz`, and `dumps/VERSION.json.gz` with the contents of the database as returned by `Admin`.
Make the dump again after each change of an unreleased schema; the dump of a released version stays as it is. The server
and pg_dump are those of PostgreSQL 15, whose dump every later PostgreSQL can restore; MQDB_PG15_BIN names their folder.
"""

import gzip
import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

import mqdb
from mqdb.common.unique_id import format_unique_id, parse_unique_id
from mqdb.embedded import EmbeddedPostgres, temporary_home
from mqdb.embedded.binaries import inspect_folder
from mqdb.store import migrations
from mqdb_client import (
    Admin,
    ConsumeFromWhere,
    DeadLetterFilter,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageSelector,
    MessageType,
    Perm,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Resolution,
    SimpleConsumer,
    TransactionProducer,
)
from tests.fixtures.postgres import libpq_15, superuser_dsn, with_parts
from tests.fixtures.processes import wait_until
from tests.migration.contents import contents

_ROOT: Final = Path(__file__).resolve().parents[2]

DUMPS: Final = Path(__file__).parent / "dumps"

#: Roles that the dump names. Who restores it needs both, or puts others in their place.
OWNER: Final = "owner_of_the_dump"
READER: Final = "reader_of_the_dump"

_LATER: Final = datetime(2099, 12, 31, 23, 59, tzinfo=UTC)


def main() -> None:
    """Make the dump of this version."""
    folder = Path(os.environ.get("MQDB_PG15_BIN", "/usr/lib/postgresql/15/bin"))
    binaries = inspect_folder(folder)
    if binaries is None or not (folder / "pg_dump").exists():
        sys.exit(f"make_dump: no PostgreSQL 15 with pg_dump in {folder}; set MQDB_PG15_BIN")
    # The listeners that fail would say so.
    logging.disable()
    with temporary_home() as home, EmbeddedPostgres(home, binaries=binaries, durable=False) as server:
        dsn = _make_database(server)
        migrations.upgrade(dsn, broker_name="broker-a", cluster_name="cluster-a")
        fill(dsn)
        with Admin(dsn) as admin:
            seen = contents(admin)
        dump = _dump(folder, dsn)
    DUMPS.mkdir(exist_ok=True)
    head = f"-- mqdb {mqdb.__version__}, schema {migrations.head()}, fingerprint {migrations._fingerprint()}\n"
    _write(".sql.gz", head + dump)
    _write(".json.gz", json.dumps(seen, indent=1, sort_keys=True))
    sys.stdout.write(f"make_dump: {head[3:]}")


def _write(suffix: str, text: str) -> None:
    """Write a file of the dump. In tracebacks of dead letters the directory of this checkout is replaced."""
    packed = gzip.compress(text.replace(str(_ROOT), "/srv/shop").encode(), mtime=0)
    (DUMPS / f"{mqdb.__version__}{suffix}").write_bytes(packed)


def _make_database(server: EmbeddedPostgres) -> str:
    with psycopg.connect(superuser_dsn(server), autocommit=True) as superuser:
        for role in (OWNER, READER):
            superuser.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        superuser.execute(f"CREATE DATABASE dumped OWNER {OWNER}".encode())
    return with_parts(server.dsn, user=OWNER, password="secret", database="dumped")


def _dump(folder: Path, dsn: str) -> str:
    command = [str(folder / "pg_dump"), "--no-owner", "--schema=mqdb", f"--dbname={libpq_15(dsn)}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Only a psql as new as pg_dump knows these two commands, which have another password each time.
    return re.sub(r"(?m)^\\(un)?restrict .*\n", "", text)


# -- the contents -------------------------------------------------------------------------------


def fill(dsn: str) -> None:
    """Store data of every kind that a broker keeps, through the clients."""
    with Admin(dsn) as admin:
        _make_topics(admin)
        _send(dsn)
        _end_transactions(dsn)
        _read(admin, dsn)
        _fail(admin, dsn)
        _pop(admin, dsn)
        _administer(admin)


def _make_topics(admin: Admin) -> None:
    admin.topics.create("forgotten", queues=2, actor="maker")  # so that the ids of topics have a gap
    admin.topics.create("orders", queues=4, actor="maker")
    admin.topics.create("invoices", queues=2, order=True, message_type=MessageType.FIFO)
    admin.topics.create("later", queues=1, message_type=MessageType.DELAY)
    admin.topics.create("payments", queues=1, message_type=MessageType.TRANSACTION)
    admin.topics.create("archive", read_queues=3, write_queues=1, perm=Perm.READ)
    admin.topics.delete("forgotten", actor="maker")


def _send(dsn: str) -> None:
    with Producer("shop", dsn) as producer:
        for number in range(20):
            kind = ("new", "paid", None)[number % 3]
            properties = {"amount": str(number * 10), "note": "ünïcode ✓"}
            keys = (f"order-{number}", "vip") if number % 5 == 0 else (f"order-{number}",)
            producer.send(Message("orders", f"order {number}", kind, keys, properties=properties))
        producer.send(Message("orders", b"\x00\xff binary", "raw"))
        producer.send(Message("orders", "long " * 2_000, "compressed"))
        for number in range(6):
            producer.send(Message("invoices", f"invoice {number}"), sharding_key=f"customer-{number % 2}")
        for number in range(3):
            producer.send(Message("later", f"by level {number}", delay_level=18))
            producer.send(Message("later", f"by time {number}", deliver_at=_LATER + timedelta(minutes=number)))


def _end_transactions(dsn: str) -> None:
    states = {"charged": LocalTransactionState.COMMIT, "refused": LocalTransactionState.ROLLBACK}

    def execute(message: Message, argument: object) -> LocalTransactionState:
        return states.get(str(argument), LocalTransactionState.UNKNOWN)

    def check(message: ReceivedMessage) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    with TransactionProducer("tills", dsn, execute_local_transaction=execute, check_local_transaction=check) as till:
        for number, outcome in enumerate(("charged", "refused", "open", "open")):
            till.send_in_transaction(Message("payments", f"payment {number}", keys=(outcome,)), outcome)


def _read(admin: Admin, dsn: str) -> None:
    """Two groups read a part of their topics: one by tags, one with an SQL92 filter."""
    for group, topic, selector in (
        ("billing", "orders", MessageSelector.by_tag("new || paid")),
        ("auditors", "orders", MessageSelector.by_sql("amount > 30")),
        ("printers", "invoices", MessageSelector.by_tag()),
    ):
        consumer = LitePullConsumer(
            group, dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False, pull_batch_size=2
        )
        consumer.subscribe(topic, selector)
        with consumer:
            wait_until(partial(consumer.poll, timedelta(seconds=1)))
            consumer.commit()
    # How far a poll has read depends on its queues; where the group stands then, no more.
    admin.offsets.reset("billing", "orders", 2, queue_id=0, reason="a part is read", actor="maker")


def _fail(admin: Admin, dsn: str) -> None:
    """A group fails all its messages at once: this leaves dead letters, one of them redriven, and a waiting retry."""
    admin.groups.update("failing", retry_max_times=0)
    admin.groups.update("trying", retry_max_times=16, retry_delays=[timedelta(hours=12)])

    def fail(messages: list[ReceivedMessage]) -> None:
        raise ValueError(f"no price for {messages[0].keys}")

    for group in ("failing", "trying"):
        consumer = PushConsumer(group, dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("orders", "raw || paid")
        consumer.register_listener(fail)
        with consumer:
            wait_until(partial(_has_handled_all, admin, group))
    letter = admin.dead_letters.list(DeadLetterFilter(group="failing"))[0]
    admin.dead_letters.redrive(DeadLetterFilter(group="failing", ids=(parse_unique_id(letter.msg_id),)), actor="maker")


def _has_handled_all(admin: Admin, group: str) -> bool:
    return [each.lag for each in admin.groups.topics(group) if each.topic == "orders"] == [0]


def _pop(admin: Admin, dsn: str) -> None:
    """A group of workers holds some messages, and has acknowledged others."""
    worker = SimpleConsumer("workers", dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    worker.subscribe("orders", "*")
    with worker:
        received: list[ReceivedMessage] = []
        while len(received) < 6:
            received += worker.receive(6, timedelta(hours=12))
        worker.ack(received[:3])


def _administer(admin: Admin) -> None:
    admin.crons.add("nightly", "30 7 * * mon-fri", Message("orders", "nightly"), timezone="Europe/Berlin")
    admin.crons.add("hourly", "@hourly", Message("orders", "hourly"), actor="maker")
    admin.crons.pause("hourly", actor="maker")
    admin.acl.grant(READER, read=["orders", "inv*"], group=["billing"], actor="maker")
    admin.acl.grant("key-1", send=["orders"], external=True)
    admin.acl.set_secret("key-1", "a secret of the dump")
    timer = admin.timers.list("later", limit=1)[0]
    admin.timers.recall(format_unique_id(timer.msg_id), actor="maker")
    admin.transactions.resolve(admin.transactions.list()[0].transaction_id, Resolution.COMMIT, actor="maker")


if __name__ == "__main__":
    main()
