"""`do.py bench grow` as a process, and the log that it grows. The tests do not assert any speed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from benchmarks.bench import grow, message_sample, testbed
from benchmarks.bench.clients import settings_for
from benchmarks.bench.grow_log import GrowingLog
from mqdb.embedded import temporary_home
from mqdb.store.engine import connected
from mqdb_client import Producer
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

#: Of a record: each message has its own.
_OWN = {"xid", "log_pos", "store_time", "born_time", "msg_id", "keys", "born_host"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, module="benchmarks.bench")


@pytest.fixture
def log(database: Database) -> Iterator[GrowingLog]:
    with connected(database.dsn, "mqdb bench") as connection:
        broker = testbed.Testbed(database.dsn, connection, is_given=True)
        # The database is a copy of another one. Its first dispatch adopts it, and would index each id that it finds.
        broker.dispatch_all()
        yield GrowingLog(broker, segment_records=500)


def records(log: GrowingLog) -> list[dict[str, Any]]:
    with psycopg.connect(log.testbed.broker.dsn, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM mqdb.commit_log ORDER BY log_pos").fetchall()


def count(log: GrowingLog, rows: str) -> int:
    (number,) = log.testbed.below.execute(f"SELECT count(*) FROM {rows}").fetchone() or (0,)
    return int(number)


@pytest.mark.long
def test_it_measures_each_item_at_each_size(place: Place) -> None:
    report = json.loads(place.run("grow", "--sizes", "2000,4000", "--rounds", "1", "--json").text)

    assert [figure["name"] for figure in report["figures"]] == list(grow.NAMES)
    for figure in report["figures"]:
        (smallest,) = figure["references"]
        assert figure["measured"]["label"].endswith("4,000 messages")
        assert smallest["label"].endswith("2,000 messages")
        assert min(*figure["measured"]["rounds"], *smallest["rounds"], smallest["ratio"]) > 0
        assert [goal["at_least"] for goal in figure["goals"]] == [1 / 1.2]
    assert report["notes"][0].startswith("2,000 messages: 4 segments")
    assert report["environment"]["durability"]["flush"] == "SYNC_FLUSH"
    assert list(place.home.iterdir()) == []


@pytest.mark.long
def test_it_runs_in_a_directory_of_choice_and_leaves_nothing_there(place: Place) -> None:
    with temporary_home() as chosen:
        options = ("--sizes", "1000", "--only", "time", "--rounds", "2", "--home", str(chosen), "--json")
        with place.running("grow", *options) as command:
            wait_until(lambda: list(chosen.iterdir()) != [], seconds=60)
            output, errors = command.process.communicate(timeout=60)

        assert (command.process.returncode, errors) == (0, "")
        assert list(chosen.iterdir()) == []
    (figure,) = json.loads(output)["figures"]
    assert (figure["name"], figure["references"]) == ("time", [])


@pytest.mark.parametrize("sizes", usually("many", of=["many", "999", "2000,1000", "2000,3000"]))
def test_it_refuses_sizes_that_do_not_grow(place: Place, sizes: str) -> None:
    outcome = place.run("grow", "--sizes", sizes)

    assert outcome.code == 1
    assert outcome.errors.startswith(f"mqdb: --sizes = '{sizes}': must")


def test_it_touches_no_database_of_a_user(place: Place, database: Database) -> None:
    outcome = place.run("grow", "--dsn", database.dsn)

    assert outcome.code == 1
    assert "names 1 brokers; grow takes 0" in outcome.errors


@pytest.mark.long
def test_records_are_such_as_a_producer_writes(log: GrowingLog) -> None:
    log.append(1)
    with Producer("bench-shape", settings=settings_for(log.testbed.broker)) as producer:
        producer.send(message_sample.message(log.topics[0].name, 0))

    filled, sent = records(log)

    # A producer takes the queues in turn, beginning with any.
    assert {filled.pop("queue_key"), sent.pop("queue_key")} <= set(log.topics[0].queue_keys)
    assert filled["keys"] == sent["keys"]
    assert {name: filled[name] for name in filled.keys() - _OWN} == {name: sent[name] for name in sent.keys() - _OWN}
    ms = "SELECT mqdb.unique_id_ms(%s)"
    made = [(log.testbed.below.execute(ms, (each["msg_id"],)).fetchone() or (0,))[0] for each in (filled, sent)]
    assert abs(made[0] - made[1]) < 60_000


@pytest.mark.long
def test_ids_need_no_entry_in_the_key_index_as_those_of_producers(log: GrowingLog) -> None:
    log.grow_to(1_000, lambda done: None)

    assert count(log, "mqdb.message_index") == 1_000  # of the keys
    assert count(log, "mqdb.id_span") > 0


@pytest.mark.long
def test_full_segments_are_sealed_and_one_group_stands_at_the_beginning(log: GrowingLog) -> None:
    log.grow_to(1_250, lambda done: None)

    assert log.messages() == 1_250
    assert count(log, "mqdb.segment WHERE state = 'sealed'") == 2
    assert count(log, "mqdb.consumer_offset WHERE next_offset = 0") == len(log.queue_keys)
    assert count(log, "mqdb.consumer_offset WHERE next_offset > 0") == len(log.queue_keys) * (len(log.groups) - 1)
