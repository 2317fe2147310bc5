"""A publication FOR ALL TABLES, as created by Debezium.

With such a publication PostgreSQL refuses UPDATE and DELETE on a table without a replica identity. So each table of
mqdb has one.
"""

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Connection

from mqdb.broker.dead_letters import DeadLetterFilter
from mqdb.broker.schedule.timers import RecallStatus, recall_message
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.unique_id import parse_unique_id
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb_client import Admin, Message, Producer, PushConsumer
from tests.fixtures import log as by_hand
from tests.fixtures.broker import topic
from tests.fixtures.consuming import LATER, SUCCESS
from tests.fixtures.delay import delivered, move_clock
from tests.fixtures.log import scalar, small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.spark_sink import write
from tests.fixtures.timers import column, deliver_all, slots, timer
from tests.fixtures.transactional import Ledger, TransactionalMember
from tests.fixtures.transactions import COMMIT, UNKNOWN, Asked, StartProducer

HOUR = timedelta(hours=1)

#: Tables and partitions that PostgreSQL cannot name a row of: they have neither a primary key nor FULL.
WITHOUT_IDENTITY = """
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p') AND c.relreplident <> 'f'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
    ORDER BY c.relname"""

DEAD_CLIENT = """
    INSERT INTO mqdb.client (client_id, kind, group_name, language, version, heartbeat_at)
    VALUES ('dead', 'CONSUMER', 'failing', 'PYTHON', '1', mqdb.now() - interval '1 hour')"""


def publish_all(database: Database) -> None:
    database.connect_as_superuser().execute("CREATE PUBLICATION everything FOR ALL TABLES")


# -- identities ---------------------------------------------------------------------------------


def test_every_table_has_a_replica_identity(log: by_hand.Connection) -> None:
    """Every table has a replica identity.

    There is no list of insert-only tables, because a future statement may update any of them.
    """
    assert log.execute(WITHOUT_IDENTITY).fetchall() == []


def test_every_partition_that_is_made_later_has_one(log: by_hand.Connection) -> None:
    count = "SELECT count(*) FROM pg_class WHERE relispartition AND relkind = 'r'"
    before = scalar(log, count)

    log.execute("SELECT mqdb.add_segment(10), mqdb.add_timer_slot(7, 0, 1)")

    assert scalar(log, count) - before == 4
    assert log.execute(WITHOUT_IDENTITY).fetchall() == []


# -- services -----------------------------------------------------------------------------------


def test_timers_behind_the_clock_are_delivered_and_recalled(broker: Connection, database: Database) -> None:
    """Timers behind the clock are delivered and recalled.

    Only for these timers are rows of `timer` deleted one by one.
    """
    publish_all(database)
    topic(broker)
    deliver_all(broker)
    move_clock(broker, -3 * HOUR)
    recalled, _ = timer(broker, HOUR, "recalled", "stays")
    deliver_all(broker)
    assert slots(broker) == ["behind"]

    assert recall_message(broker, parse_unique_id(recalled), None) is RecallStatus.RECALLED
    move_clock(broker, HOUR)
    deliver_all(broker)

    assert delivered(broker) == ["stays"]
    assert column(broker, "SELECT count(*) FROM mqdb.timer") == [0]


class Listener:
    """A listener that fails each message once, and a hopeless one always."""

    def __init__(self, *, orderly: bool = False) -> None:
        self.is_orderly = orderly
        self.calls: Counter[str] = Counter()

    def __call__(self, messages: list[ReceivedMessage]) -> Any:
        [body] = [message.body.decode() for message in messages]
        self.calls[body] += 1
        is_done = self.calls[body] > 1 and body != "hopeless"
        return (SUCCESS if is_done else LATER)[self.is_orderly]


def test_no_round_fails_under_a_publication(
    database: Database,
    log: by_hand.Connection,
    broker: Connection,
    transactional_producer: StartProducer,
    transactional_member: TransactionalMember,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No round fails under a publication.

    Messages of each kind go through all services; then days pass, timers and crons become due, and segments are
    dropped.
    """
    publish_all(database)
    small_segments(log, 8, ahead=3)
    for name in ("orders", "failing", "timed", "dying"):
        topic(broker, name)
    log.execute("UPDATE mqdb.delay_level SET delay = '20 ms'")
    settings = load_settings(
        dsn=database.dsn,
        transaction_timeout="100ms",
        transaction_check_interval="100ms",
        delete_when=tuple(range(24)),
    )
    failing, timed, ledger = Listener(), Listener(orderly=True), Ledger(broker)
    asked = Asked(executed=UNKNOWN, checked=COMMIT)

    with (
        caplog.at_level(logging.WARNING),
        Server(settings),
        Admin(database.dsn) as admin,
        Producer("senders", database.dsn) as producer,
        consumer(database, "failing", failing, max_reconsume_times=1),
        consumer(database, "timed", timed),
    ):
        member = transactional_member(ledger)
        for body in ("fails once", "hopeless"):
            producer.send(Message("failing", body, keys=("key",)))
        producer.send(Message("timed", "level", delay_level=1))
        producer.send(Message("timed", "soon", deliver_at=datetime.now(UTC) + timedelta(seconds=1)))
        producer.send(Message("timed", "in days", deliver_at=datetime.now(UTC) + 48 * HOUR))
        taken_back = producer.send(Message("timed", "never", deliver_at=datetime.now(UTC) + 24 * HOUR))
        assert taken_back.recall_handle is not None
        transactional_producer(asked).send_in_transaction(Message("orders", "half"))
        producer.send(Message("orders", "whole"))
        write(database, {"body": ["from Spark"]}, topic="orders")
        admin.crons.add("tick", "0 0 * * *", Message("orders", "tick"))

        wait_until(lambda: sorted(ledger.bodies) == ["from Spark", "half", "whole"])
        wait_until(lambda: {"level", "soon"} <= timed.calls.keys())
        wait_until(lambda: admin.dead_letters.count(DeadLetterFilter("failing")) == 1)
        assert producer.recall(taken_back.recall_handle) is RecallStatus.RECALLED
        [redriven] = admin.dead_letters.redrive(DeadLetterFilter("failing"))
        assert redriven.error is None
        wait_until(lambda: failing.calls["hopeless"] > 2)
        for _ in range(30):
            producer.send(Message("orders", "more"))
        member.shutdown()
        log.execute(DEAD_CLIENT)
        wait_until(lambda: scalar(log, "SELECT count(*) FROM mqdb.client WHERE client_id = 'dead'") == 0)
        admin.topics.delete("dying")
    oldest = scalar(log, "SELECT min(segment) FROM mqdb.segment")
    let_pass(database, "5 days")
    with caplog.at_level(logging.WARNING), Server(settings), consumer(database, "timed", timed):
        wait_until(lambda: timed.calls["in days"] > 0)
        wait_until(lambda: scalar(log, "SELECT sent FROM mqdb.cron") == 1)
        wait_until(lambda: scalar(log, "SELECT count(*) FROM mqdb.segment WHERE state = 'sealed'") > 0)
    let_pass(database, "10 days")
    with caplog.at_level(logging.WARNING), Server(settings):  # the first rounds of keepers come at once
        wait_until(lambda: scalar(log, "SELECT min(segment) FROM mqdb.segment") > oldest)
        wait_until(lambda: scalar(log, "SELECT count(*) FROM mqdb.timer_slot") == 0)

    assert "never" not in timed.calls
    told = {record.name for record in caplog.records if record.name.startswith("mqdb.")}
    assert told == {"mqdb.service.cron_sender", "mqdb.service.timer_deliverer"}  # that times have passed
    assert log.execute(WITHOUT_IDENTITY).fetchall() == []


def let_pass(database: Database, time: str) -> None:
    """Move the clock of each session that begins from now on."""
    # Only a superuser may give a setting of no extension a default.
    alter = sql.SQL("ALTER DATABASE {} SET mqdb.clock_offset = {}")
    database.connect_as_superuser().execute(alter.format(sql.Identifier(database.name), sql.Literal(time)))


def consumer(database: Database, name: str, listener: Listener, **options: Any) -> PushConsumer:
    """Consumes a topic in a group of the same name."""
    started = PushConsumer(name, database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options)
    started.subscribe(name)
    started.register_listener(listener, orderly=listener.is_orderly)
    return started
