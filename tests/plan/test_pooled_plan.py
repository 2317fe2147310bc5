"""Clients behind a pooler use the indexes, although none of their settings reaches the server.

Each statement is planned on arrival, for its own values, with the planner's default settings. The reads of a whole
client are measured by the server's own counters.
"""

import pytest

from benchmarks.bench import message_sample
from mqdb_client import Message, MessageSelector
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.log import create_topic, dispatch_all, index_all, small_segments
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import producer_of
from tests.fixtures.variants import usually

SEGMENT = 1_000
SEGMENTS = 12

READ_FROM_END_TO_END = """
SELECT relname, seq_tup_read FROM pg_stat_user_tables
WHERE schemaname = 'mqdb' AND relname ~ '^(commit_log|queue_run|message_index)_' AND seq_tup_read > 0
"""

CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture(params=usually("analyzed while empty", of=["never analyzed", "analyzed while empty", "analyzed"]))
def filled(request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A broker with many segments, whose clients assume that there is a pooler."""
    connection = database.connect()
    small_segments(connection, SEGMENT, ahead=SEGMENTS)
    if request.param == "analyzed while empty":
        connection.execute("ANALYZE")
    queues = create_topic(connection, "orders", 4)
    message_sample.fill(connection, queues, SEGMENT * SEGMENTS)
    dispatch_all(connection, 10_000)
    index_all(connection, 10_000)
    if request.param == "analyzed":
        connection.execute("ANALYZE")
    # The first dispatch adopts the clone, and reads segments from end to end for that. None of it may count later.
    database.close()
    wait_until_told(database)
    monkeypatch.setenv("MQDB_POOL_DSN", database.dsn)
    return database


def test_no_client_reads_a_segment_from_end_to_end(filled: Database, member: Member) -> None:
    readers = {"all": "*", "tag": "TagA || TagB", "selector": MessageSelector.by_sql("a > 5 AND color = 'red'")}
    inboxes = {group: Inbox() for group in readers}
    before = dict(filled.rows(READ_FROM_END_TO_END))

    members = [member(inboxes[group], group=group, expression=wanted) for group, wanted in readers.items()]
    with producer_of(filled.dsn) as producer:
        sent = [producer.send(Message("orders", f"{number}", keys=f"{number}")) for number in range(20)]
        producer.send(Message("orders", "later", delay_level=3))
        for result in sent:
            assert producer.outcome(result.message_id) is not None
            assert result.queue_offset is not None
        inboxes["all"].wait_for(SEGMENT)
    for each in members:
        each.shutdown()
    wait_until_told(filled)

    after = dict(filled.rows(READ_FROM_END_TO_END))
    assert {name: rows - before.get(name, 0) for name, rows in after.items() if rows != before.get(name)} == {}


def wait_until_told(database: Database) -> None:
    """Wait until no client session is left: each reports its reads once a second, and the rest when it ends."""
    wait_until(lambda: database.rows(CLIENTS) == [(0,)])
