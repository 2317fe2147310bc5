"""Rows 30 and 31 of the checklist of RocketMQ's behaviours: delays across a restart, and delivery times.

A message must not arrive early, so the tests only assert lower bounds, by the broker's clock: the delivered copy is
stored when the message is due. The benchmark measures the lateness.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.errors import MessageIllegal, ResponseCode
from mqdb_client import Message, Producer
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.delay import stop_clock
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of
from tests.fixtures.serve import Starter, leader_pid

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    with producer_of(database.dsn) as producer:
        yield producer


def rows(database: Database, statement: str, *values: object) -> list[tuple[Any, ...]]:
    return database.connect().execute(statement.encode(), values).fetchall()


def waiting(database: Database) -> int:
    return int(rows(database, "SELECT count(*) FROM mqdb.scheduled")[0][0])


def test_row_30_what_waits_survives_a_kill_and_comes_exactly_once(
    serve: Starter, database: Database, broker: Connection, producer: Producer, member: Member
) -> None:
    create_topic(database.connect(), "orders", 4)
    inbox = Inbox()
    member(inbox)
    first = serve(dsn=database.dsn, message_delay_level="4s 30s")
    leader_pid(database.dsn)
    [(moving_clock,)] = rows(database, "SELECT pg_get_functiondef('mqdb.now'::regproc)")
    stop_clock(broker)  # until the kill
    for n in range(10):
        producer.send(Message("orders", f"level {n}", delay_level=1))
        producer.send(Message("orders", f"timer {n}", delay=4 * SECOND))
    wait_until(lambda: rows(database, "SELECT count(*) FROM mqdb.timer") == [(10,)])
    assert waiting(database) == 20

    first.kill()
    database.connect().execute(moving_clock)
    serve(dsn=database.dsn)

    inbox.wait_for(20)
    wait_until(lambda: waiting(database) == 0)
    bodies = sorted(received.body.decode() for received in inbox.messages)
    assert bodies == sorted([f"{kind} {n}" for kind in ("level", "timer") for n in range(10)])
    assert [early for (early,) in rows(database, EARLY)] == []


#: Copies that were stored before the time that stands in the record that was sent.
EARLY = """
SELECT copy.log_pos FROM mqdb.commit_log copy JOIN mqdb.commit_log sent USING (msg_id)
WHERE sent.log_pos < copy.log_pos AND copy.store_time < to_timestamp(sent.tags_code / 1000.0)
"""


def test_row_31_a_message_comes_at_its_time_and_four_days_are_refused(
    serve: Starter, database: Database, producer: Producer, member: Member
) -> None:
    create_topic(database.connect(), "orders", 4)
    inbox = Inbox()
    member(inbox)
    serve(dsn=database.dsn, timer_max_delay="3d")
    leader_pid(database.dsn)
    [(now,)] = rows(database, "SELECT mqdb.now()")
    assert isinstance(now, datetime)

    producer.send(Message("orders", "soon", deliver_at=now + 2.5 * SECOND))
    with pytest.raises(MessageIllegal) as refused:
        producer.send(Message("orders", "never", deliver_at=now + 4 * DAY))
    producer.send(Message("orders", "far", deliver_at=now + 3 * DAY - SECOND))

    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    inbox.wait_for(1, 20)
    [received] = inbox.messages
    assert received.body == b"soon"
    # To the millisecond, where RocketMQ's second may be up to one early.
    assert received.store_time >= now + 2.5 * SECOND - timedelta(milliseconds=1)
    assert rows(database, "SELECT count(*) FROM mqdb.scheduled") == [(1,)]
