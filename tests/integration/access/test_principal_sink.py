"""Spark's sink for a role that does not own the broker is exactly once, without access to data of others.

The tests run without Spark, like spark/test_sink.py: writers are pickled as Spark does, and tasks run by hand.
"""

from datetime import timedelta

import pyarrow as pa
import pytest
from sqlalchemy import Connection

from mqdb.pipeline.errors import OptionInvalid, SinkBatchMismatch
from mqdb.store.topics import topics
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import Admin, errors
from tests.fixtures.broker import bodies
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.spark_sink import QUERY_ID, batch_writer_for, batches_of, rows_in, stage, stored, stream_writer_for

ETL = 'the "etl"'
TABLE = {"body": ["a"]}


@pytest.fixture
def route(broker: Connection, owner: Admin) -> TopicRoute:
    owner.topics.create("single", queues=1)
    found = topics.find_topic(broker, "single")
    assert found is not None
    return found


@pytest.fixture
def etl(route: TopicRoute, principal: Principal) -> Database:
    """The database as seen by a role that may send to `single`."""
    return Database(principal(ETL, send=["single"]))


def test_a_batch_is_appended_once_however_often_it_is_run(broker: Connection, route: TopicRoute, etl: Database) -> None:
    writer = stream_writer_for(etl, TABLE, topic="single")
    stage(writer, {"body": ["a failed attempt"]}, 0)
    writer.commit([stage(writer, {"body": ["a", "b"]}, 0), stage(writer, {"body": ["c"]}, 0)], 0)
    writer.commit([stage(writer, {"body": ["again", "b", "c"]}, 0)], 0)
    writer.commit([stage(writer, {"body": ["d"]}, 1)], 1)

    assert bodies(stored(broker, route)) == ["a", "b", "c", "d"]
    assert rows_in(broker, "sink_batch", "sink_write", "sink_stage") == [2, 0, 0]
    principals = broker.exec_driver_sql("SELECT DISTINCT principal FROM mqdb.sink_batch").scalars().all()
    assert principals == [ETL]


def test_all_parts_of_a_message_arrive(
    broker: Connection, route: TopicRoute, etl: Database, database: Database
) -> None:
    table = {
        "body": [b"\x00\xff", b"b"],
        "tags": ["t", None],
        "keys": ["k l", None],
        "properties": ['{"a": "\\u00e9 \\" \\\\"}', None],
    }
    for who in (database, etl):
        batch_writer_for(who, table, topic="single").commit(
            [batch_writer_for(who, table, topic="single").write(batches_of(table))]
        )
    found = stored(broker, route)
    parts = [(each.body, each.tag, each.keys, each.properties.get("a")) for each in found]
    assert parts[:2] == parts[2:] == [(b"\x00\xff", "t", ("k", "l"), 'é " \\'), (b"b", None, (), None)]


def test_many_rows_are_staged_by_several_statements(broker: Connection, route: TopicRoute, etl: Database) -> None:
    table = {"body": [str(number) for number in range(12_000)]}
    writer = batch_writer_for(etl, table, topic="single")
    writer.commit([writer.write(batches_of(table, 12_000))])

    assert bodies(stored(broker, route)) == [str(number) for number in range(10_000)]
    assert rows_in(broker, "commit_log", "sink_stage") == [12_000, 0]


def test_messages_may_wait(broker: Connection, route: TopicRoute, etl: Database) -> None:
    table = {"body": ["a", "b"], "delay_level": pa.array([3, 0], pa.int32())}
    writer = batch_writer_for(etl, table, topic="single")
    writer.commit([writer.write(batches_of(table))])

    assert bodies(stored(broker, route)) == ["b"]
    assert broker.exec_driver_sql("SELECT topic FROM mqdb.scheduled").scalars().all() == ["single"]


def test_a_batch_that_is_given_up_leaves_nothing(broker: Connection, etl: Database) -> None:
    writer = stream_writer_for(etl, TABLE, topic="single")
    writer.abort([stage(writer, TABLE, 0), None], 0)

    assert rows_in(broker, "sink_write", "sink_stage", "sink_batch") == [0, 0, 0]


def test_a_batch_that_lacks_messages_is_not_appended(broker: Connection, route: TopicRoute, etl: Database) -> None:
    writer = stream_writer_for(etl, TABLE, topic="single")
    staged = stage(writer, {"body": ["a", "b"]}, 0)
    broker.exec_driver_sql("DELETE FROM mqdb.sink_stage WHERE body = 'a'")

    with pytest.raises(SinkBatchMismatch):
        writer.commit([staged], 0)
    assert stored(broker, route) == []


def test_the_ledger_of_a_role_is_its_own(
    broker: Connection, route: TopicRoute, etl: Database, principal: Principal, database: Database
) -> None:
    """Each role has its own ledger: three roles write the same query and the same job without interfering."""
    rival = Database(principal("rival", send=["single"]))
    for number, who in enumerate((rival, etl, database)):
        table = {"body": [f"stream {number}"]}
        stream = stream_writer_for(who, table, topic="single", sinkId="same")
        stream.commit([stage(stream, table, 7 - number, QUERY_ID[:-1] + str(number))], 0)
        job = batch_writer_for(who, table, topic="single", writeId="same")
        job.commit([job.write(batches_of({"body": [f"job {number}"]}))])

    expected = [f"{kind} {number}" for number in range(3) for kind in ("stream", "job")]
    assert bodies(stored(broker, route)) == expected
    job = batch_writer_for(etl, {"body": ["a", "b"]}, topic="single", writeId="same")
    with pytest.raises(OptionInvalid, match="writeId"):
        job.commit([job.write(batches_of({"body": ["a", "b"]}))])


def test_the_owner_and_the_members_of_its_role_share_a_ledger(
    broker: Connection, route: TopicRoute, database: Database, principal: Principal
) -> None:
    member = Database(principal("ada", send=["single"]))
    [(owner,)] = database.rows("SELECT quote_ident(session_user)")
    database.connect_as_superuser().execute(f"GRANT {owner} TO ada".encode())
    for who in (database, member):
        job = batch_writer_for(who, TABLE, topic="single", writeId="once")
        job.commit([job.write(batches_of(TABLE))])

    assert bodies(stored(broker, route)) == ["a"]


@pytest.mark.parametrize("topic", ["secret", "no-such-topic"])
def test_a_topic_that_it_may_not_send_to_is_refused_before_any_task_runs(
    owner: Admin, etl: Database, topic: str
) -> None:
    owner.acl.grant(ETL, read=["secret"])

    with pytest.raises(errors.AccessDenied, match=f"SEND on TOPIC '{topic}'"):
        batch_writer_for(etl, TABLE, topic=topic)


def test_a_row_for_such_a_topic_ends_its_task(broker: Connection, etl: Database) -> None:
    table = {"body": ["a", "b"], "topic": ["single", "secret"]}
    with pytest.raises(errors.AccessDenied, match="'secret'"):
        batch_writer_for(etl, table).write(batches_of(table))

    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]


def test_a_right_that_is_gone_at_the_commit_appends_nothing(
    broker: Connection, route: TopicRoute, owner: Admin, etl: Database
) -> None:
    writer = stream_writer_for(etl, TABLE, topic="single")
    staged = stage(writer, TABLE, 0)
    owner.acl.revoke(ETL, send=["single"])
    owner.acl.grant(ETL, send=["other"], read=["single"])

    with pytest.raises(errors.AccessDenied, match="SEND on TOPIC 'single'"):
        writer.commit([staged], 0)
    assert (stored(broker, route), rows_in(broker, "sink_batch")) == ([], [0])


def test_what_is_stale_is_cleared_by_its_role_and_by_the_owner(
    broker: Connection, etl: Database, principal: Principal, database: Database
) -> None:
    rival = Database(principal("rival", send=["single"]))
    for who in (etl, rival, database):
        batch_writer_for(who, TABLE, topic="single").write(batches_of(TABLE))
    old = timedelta(hours=25)
    broker.exec_driver_sql("UPDATE mqdb.sink_write SET staged_at = mqdb.now() - %s", (old,))

    job = batch_writer_for(etl, TABLE, topic="single")
    job.commit([job.write(batches_of(TABLE))])
    left = "SELECT principal FROM mqdb.sink_write ORDER BY principal"
    assert broker.exec_driver_sql(left).scalars().all() == ["", "rival"]

    job = batch_writer_for(database, TABLE, topic="single")
    job.commit([job.write(batches_of(TABLE))])
    assert rows_in(broker, "sink_write", "sink_stage") == [0, 0]
