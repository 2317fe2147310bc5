"""Spark's sink for two brokers: each row is stored once on one of them, whatever fails between two commits."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from sqlalchemy import Connection, text

from mqdb.broker import acl
from mqdb.broker.acl import Rights
from mqdb.broker.topics import topics as admin
from mqdb.errors import BrokerMisnamed, BrokerUnavailable, MqdbError, TopicNotFound
from mqdb.pipeline.errors import OptionInvalid, SinkBatchChanged, SinkBatchesMissing, SinkBrokerMissing, SinkRowInvalid
from mqdb.pipeline.read import engines
from mqdb.pipeline.write.cluster_sink import ClusterWriting
from mqdb.pipeline.write.sink import Writing
from mqdb.pipeline.write.writers import StreamWriter
from mqdb_client import Message
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.postgres import Database, with_parts
from tests.fixtures.producers import TwoBrokers, dsn_of_two, producer_of
from tests.fixtures.roles import MakeRole
from tests.fixtures.spark_sink import Table, rows_in, stage, stream_writer_for, write
from tests.fixtures.spark_source import read

Both: TypeAlias = tuple[Connection, Connection]

BODIES = [f"row {number}" for number in range(40)]
ROWS: dict[str, Any] = {"body": BODIES}


@pytest.fixture
def cluster(two_brokers: TwoBrokers) -> Database:
    """A database object whose DSN lists both brokers."""
    return Database(two_brokers.dsn)


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    """Leave no idle connection, because databases are dropped after each test."""
    yield
    engines.close_idle()


@pytest.fixture(autouse=True)
def _orders(both: Both) -> None:
    """A topic with two queues on the first broker and three on the second."""
    for connection, queues in zip(both, (2, 3), strict=True):
        topic(connection, queues=queues)


def stored(both: Both) -> list[set[str]]:
    """The bodies on each broker; fails if a body is stored twice."""
    found = []
    for connection in both:
        dispatch_all(connection)
        bodies = connection.scalars(text("SELECT text FROM mqdb.message WHERE topic = 'orders'")).all()
        assert len(bodies) == len(set(bodies)), "doubled"
        found.append(set(bodies))
    return found


def is_whole(both: Both, bodies: Sequence[str] = BODIES) -> bool:
    """Whether each row is stored on one of the brokers."""
    a, b = stored(both)
    return not a & b and a | b == set(bodies)


def commit(database: Database, tables: Sequence[Table], batch_id: int = 0, **options: str) -> None:
    """Run a streaming batch: a task for each table, and the commit."""
    writer = stream_writer_for(database, tables[0], topic="orders", **options)
    writer.commit([stage(writer, table, batch_id) for table in tables], batch_id)


class Dead(BaseException):
    """The death of the driver."""


@dataclass(frozen=True)
class DyingBefore(Writing):
    """A broker before whose commit the driver dies."""

    def append(self, *_: Any) -> None:
        raise Dead


def die_between_commits(database: Database, table: Table, batch_id: int = 0) -> None:
    """Run a batch whose driver commits on the first broker and then dies."""
    writer = stream_writer_for(database, table, topic="orders")
    die_after_first(writer, stage(writer, table, batch_id), batch_id)


def die_after_first(writer: DataSourceStreamWriter, staged: WriterCommitMessage, batch_id: int = 0) -> None:
    """Commit on the first broker, and then die."""
    assert isinstance(writer, StreamWriter)
    assert isinstance(writer._writing, ClusterWriting)
    a, b = writer._writing.writings
    dying = replace(writer._writing, writings=(a, DyingBefore(b.options, b.columns)))
    with pytest.raises(Dead):
        StreamWriter(dying).commit([staged], batch_id)


def test_rows_are_spread_over_the_brokers_and_a_key_goes_where_a_producer_sends_it(
    both: Both, two_brokers: TwoBrokers, cluster: Database
) -> None:
    keys = [f"key {number}" for number in range(12)]
    with producer_of(two_brokers.dsn) as producer:
        for key in keys:
            producer.send(Message("orders", f"sent {key}"), sharding_key=key)
    write(cluster, {"body": [f"written {key}" for key in keys], "sharding_key": keys}, topic="orders")
    write(cluster, ROWS, topic="orders")

    a, b = stored(both)
    assert a & set(BODIES)
    assert b & set(BODIES)
    found: dict[str, tuple[str, int]] = {}
    for name, connection in zip("ab", both, strict=True):
        rows = connection.execute(text("SELECT text, queue_id FROM mqdb.message WHERE topic = 'orders'"))
        found |= {row.text: (name, row.queue_id) for row in rows}
    assert [found[f"written {key}"] for key in keys] == [found[f"sent {key}"] for key in keys]


def test_a_batch_is_completed_after_a_crash_between_the_commits(both: Both, cluster: Database) -> None:
    """A batch is completed after a crash between the commits.

    Spark divides it into other tasks, and passes the rows in another order.
    """
    die_between_commits(cluster, ROWS)
    a, b = stored(both)
    assert a
    assert not b
    shuffled = random.Random(7).sample(BODIES, len(BODIES))

    commit(cluster, [{"body": shuffled[:9]}, {"body": shuffled[9:]}])

    assert is_whole(both)
    assert stored(both)[0] == a
    for connection in both:
        assert rows_in(connection, "sink_batch", "sink_stage", "sink_write") == [1, 0, 0]
        ledger = connection.execute(text("SELECT brokers FROM mqdb.sink_batch")).scalar_one()
        assert ledger == ["broker-a", "broker-b"]
    commit(cluster, [{"body": ["next"]}], 1)
    assert is_whole(both, [*BODIES, "next"])


def test_a_batch_goes_into_the_log_of_each_broker_in_parts(both: Both, cluster: Database) -> None:
    with pytest.raises(OptionInvalid, match=r"ALTER TABLE mqdb\.sink_stage SET LOGGED"):
        stream_writer_for(cluster, ROWS, topic="orders", maxRowsPerCommit="3")
    for connection in both:
        connection.exec_driver_sql("ALTER TABLE mqdb.sink_write SET LOGGED")
        connection.exec_driver_sql("ALTER TABLE mqdb.sink_stage SET LOGGED")
    commit(cluster, [{"body": BODIES[:25]}, {"body": BODIES[25:]}], maxRowsPerCommit="3", commitSessions="2")

    assert is_whole(both)
    assert [rows_in(connection, "sink_batch", "sink_part", "sink_stage") for connection in both] == [[1, 0, 0]] * 2


def test_a_batch_that_both_have_is_not_appended_again(both: Both, cluster: Database) -> None:
    for _ in range(2):
        commit(cluster, [ROWS])
        write(cluster, {"body": ["job"]}, topic="orders", writeId="nightly")

    assert is_whole(both, [*BODIES, "job"])


def test_a_batch_that_is_not_the_same_any_more_is_appended_nowhere(both: Both, cluster: Database) -> None:
    """A batch that has changed is appended nowhere.

    The topic has got an additional queue, so keys map to other brokers.
    """
    keyed: Table = ROWS | {"sharding_key": BODIES}
    die_between_commits(cluster, keyed)
    before = stored(both)
    admin.update_topic(both[1], "orders", read_queue_nums=4, write_queue_nums=4)

    with pytest.raises(SinkBatchChanged, match=r"batch 0 of sink .* is already in broker 'broker-a'"):
        commit(cluster, [keyed])
    assert stored(both) == before
    admin.update_topic(both[1], "orders", read_queue_nums=4, write_queue_nums=3)
    commit(cluster, [keyed])
    assert is_whole(both)


@pytest.mark.long
def test_a_batch_that_is_not_the_same_any_more_is_completed_if_it_may_be(
    both: Both, cluster: Database, caplog: pytest.LogCaptureFixture
) -> None:
    die_between_commits(cluster, ROWS)
    before = stored(both)
    others = [f"other {number}" for number in range(40)]

    commit(cluster, [{"body": others}], failOnDataLoss="false")

    assert "a batch is completed with other rows" in caplog.text
    assert stored(both)[0] == before[0]
    assert stored(both)[1] < set(others)


def test_a_job_that_has_failed_between_the_commits_is_completed_with_its_write_id(
    both: Both, two_brokers: TwoBrokers, cluster: Database
) -> None:
    both[1].execute(text("ALTER TABLE mqdb.sink_batch ADD CONSTRAINT shut CHECK (false) NOT VALID"))
    with pytest.raises(Exception, match="shut"):
        write(cluster, ROWS, topic="orders", writeId="nightly")
    assert not stored(both)[1]
    both[1].execute(text("ALTER TABLE mqdb.sink_batch DROP CONSTRAINT shut"))

    write(cluster, ROWS, topic="orders", writeId="nightly")

    assert is_whole(both)
    with pytest.raises(SinkBatchChanged, match="another batch job needs another writeId"):
        write(cluster, {"body": ["other"]}, topic="orders", writeId="nightly")


def test_a_broker_may_join_a_stream(both: Both, two_brokers: TwoBrokers, cluster: Database) -> None:
    """A broker may join a stream that has written to one broker, whose url had no name."""
    for batch_id in range(2):
        commit(two_brokers.a, [{"body": [f"alone {batch_id}"]}], batch_id)

    for batch_id in (2, 3):
        commit(cluster, [{"body": [f"{batch_id} {body}" for body in BODIES]}], batch_id)

    assert is_whole(both, ["alone 0", "alone 1", *(f"{batch_id} {body}" for batch_id in (2, 3) for body in BODIES)])


@pytest.mark.long
def test_a_broker_that_has_lost_batches_stops_the_stream(both: Both, cluster: Database) -> None:
    for batch_id in range(3):
        commit(cluster, [{"body": [f"{batch_id} {body}" for body in BODIES]}], batch_id)
    both[1].execute(text("DELETE FROM mqdb.sink_batch"))
    before = stored(both)

    with pytest.raises(SinkBatchesMissing, match="batches 0 to 2"):
        commit(cluster, [ROWS], 3)
    assert stored(both) == before
    commit(cluster, [ROWS], 3, failOnDataLoss="false")
    assert stored(both)[0] | stored(both)[1] == before[0] | before[1] | set(BODIES)


def test_a_broker_that_has_left_the_list_stops_the_stream(
    both: Both, two_brokers: TwoBrokers, cluster: Database
) -> None:
    commit(cluster, [ROWS])
    alone = Database(f"broker-b={two_brokers.b.dsn}")

    with pytest.raises(SinkBrokerMissing, match="has written to broker 'broker-a', which the url does not name"):
        commit(alone, [{"body": ["more"]}], 1)
    with pytest.raises(OptionInvalid, match="has written to a list of brokers, so give each broker its name"):
        commit(two_brokers.b, [{"body": ["more"]}], 1)
    commit(alone, [{"body": ["more"]}], 1, failOnDataLoss="false")
    assert is_whole(both, [*BODIES, "more"])


@pytest.mark.long
def test_a_topic_may_be_on_one_broker_alone(both: Both, cluster: Database) -> None:
    admin.delete_topic(both[0], "orders")

    commit(cluster, [ROWS])

    assert stored(both) == [set(), set(BODIES)]
    with pytest.raises(TopicNotFound):
        stream_writer_for(cluster, ROWS, topic="nowhere")


def test_bad_rows_go_to_their_topic_once_also_after_a_crash(both: Both, cluster: Database) -> None:
    for connection in both:
        topic(connection, "bad")
    table: dict[str, Any] = {"body": [*BODIES, *[""] * 5], "tags": [f"tag-{number}" for number in range(45)]}
    options = {"topic": "orders", "onBadRow": "topic:bad"}
    writer = stream_writer_for(cluster, table, **options)
    die_after_first(writer, stage(writer, table, 0))
    order = random.Random(3).sample(range(45), 45)
    shuffled: Table = {name: [values[number] for number in order] for name, values in table.items()}
    again = stream_writer_for(cluster, table, **options)

    again.commit([stage(again, shuffled, 0)], 0)

    assert is_whole(both)
    for connection in both:
        dispatch_all(connection)
    sql = text("SELECT count(*) FROM mqdb.message WHERE topic = 'bad'")
    assert sum(connection.scalar(sql) for connection in both) == 5
    failing = stream_writer_for(cluster, table | {"broker": ["x"] * 45}, topic="orders")
    with pytest.raises(SinkRowInvalid, match="column broker: is 'x', but the url names broker-a, broker-b"):
        stage(failing, table | {"broker": ["x"] * 45}, 1)


@pytest.mark.long
def test_a_frame_that_was_read_is_written_to_the_same_queues(both: Both, cluster: Database) -> None:
    write(cluster, ROWS, topic="orders")
    stored(both)
    for connection, queues in zip(both, (2, 3), strict=True):
        topic(connection, "copies", queues=queues)
    names = "broker", "queue_id", "body", "msg_id", "properties"
    rows = read(cluster, columns=",".join(names))
    records = read(cluster, rowFormat="kafka", columns="partition,value")

    queue_ids = pa.array([row["queue_id"] for row in rows], pa.int32())
    write(cluster, {name: [row[name] for row in rows] for name in names} | {"queue_id": queue_ids}, topic="copies")
    partitions = pa.array([row["partition"] for row in records], pa.int32())
    write(cluster, {"partition": partitions, "value": [row["value"] for row in records]}, topic="copies")

    for connection in both:
        dispatch_all(connection)
    found = [(row["broker"], row["queue_id"], row["body"]) for row in read(cluster, subscribe="copies")]
    assert sorted(found) == sorted([(row["broker"], row["queue_id"], row["body"]) for row in rows] * 2)


@pytest.mark.long
def test_a_broker_that_is_away_or_another_one_gets_nothing_and_neither_do_the_others(
    both: Both, two_brokers: TwoBrokers, cluster: Database
) -> None:
    writer = stream_writer_for(cluster, ROWS, topic="orders")
    staged = stage(writer, ROWS, 0)
    away = Database(dsn_of_two(two_brokers.a.dsn, with_parts(two_brokers.b.dsn, port=1)))
    late = stream_writer_for(away, ROWS, topic="orders", brokerWaitSeconds="0")

    with pytest.raises(BrokerUnavailable):
        late.commit([staged], 0)
    with pytest.raises(BrokerMisnamed, match="is broker 'broker-b', not 'broker-a'"):
        write(Database(dsn_of_two(two_brokers.b.dsn, two_brokers.a.dsn)), ROWS, topic="orders")
    assert stored(both) == [set(), set()]


@pytest.mark.long
def test_a_role_writes_to_the_brokers_on_which_it_has_the_right(
    both: Both, two_brokers: TwoBrokers, role: MakeRole
) -> None:
    """A role writes to the brokers on which it has the right.

    On each, row security shows the role its own ledger and stage.
    """
    on_a = role("etl")
    given = conninfo_to_dict(on_a)
    on_b = with_parts(two_brokers.b.dsn, user=given["user"], password=given["password"])
    acl.grant(both[0], "etl", Rights(send=["orders"]))
    acl.grant(both[1], "etl", Rights(send=["flights"]))
    guest = Database(dsn_of_two(on_a, on_b))

    with pytest.raises(MqdbError, match="has no right SEND on TOPIC 'orders'"):
        commit(guest, [ROWS])
    acl.grant(both[1], "etl", Rights(send=["orders"]))
    die_between_commits(guest, ROWS)
    commit(guest, [{"body": BODIES[:11]}, {"body": BODIES[11:]}])

    assert is_whole(both)
    for connection in both:
        assert rows_in(connection, "sink_batch", "sink_stage", "sink_write") == [1, 0, 0]
