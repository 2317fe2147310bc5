"""Sends in the caller's transaction to a log whose sequences were not carried over, before the log is adopted."""

import psycopg
import pytest

from mqdb.errors import StorageRefused
from mqdb_client import Message
from tests.fixtures.log import Connection, append, create_topic, dispatch_all
from tests.fixtures.postgres import Database
from tests.fixtures.producers import producer_of


@pytest.fixture(autouse=True)
def behind(log: Connection) -> None:
    """A log after logical replication, which copies only rows.

    Position 0 has no partition, and the next ones are taken.
    """
    [queue] = create_topic(log, "orders")
    append(log, queue, 3)
    dispatch_all(log)
    log.execute("UPDATE mqdb.broker SET database_oid = 1")
    log.execute("SELECT setval('mqdb.log_pos', 0, false)")


def test_a_joined_send_says_what_to_do_and_can_be_sent_again(log: Connection, database: Database) -> None:
    with producer_of(database.dsn) as producer, psycopg.connect(database.dsn) as connection:
        for sqlstate in ("23514", "23505"):
            with pytest.raises(StorageRefused, match="nothing is stored") as refused:
                producer.send(Message("orders", "x"), connection=connection)
            assert refused.value.sqlstate == sqlstate
            assert "start mqdb serve" in str(refused.value)
            connection.rollback()
        adopt(database)
        producer.send(Message("orders", "y"), connection=connection)

    assert sent(log) == ["y"]


def adopt(database: Database) -> None:
    """Adopt the database like the first dispatch of `mqdb serve`, whose session has not seen the database before."""
    dispatch_all(database.connect())


def sent(log: Connection) -> list[str]:
    """The bodies after the first three messages."""
    dispatch_all(log)
    bodies = "SELECT convert_from(body, 'UTF8') FROM mqdb.message WHERE topic = 'orders' ORDER BY queue_offset"
    return [body for (body,) in log.execute(bodies)][3:]
