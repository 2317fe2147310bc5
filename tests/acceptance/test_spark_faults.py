"""Spark copies a topic to another topic and to Parquet, while its processes and PostgreSQL are killed with -9.

In the end both copies equal the topic: nothing is lost or duplicated, and the messages of each key are in order. Every
run prints its seed and its faults. The usual run kills each process once; a long run, with other seeds each time:

    MQDB_FAULT_RUNS=3 MQDB_FAULT_KILLS=2 pytest tests/acceptance/test_spark_faults.py

MQDB_FAULT_SEED is the seed of the first run: it decides which process is killed when. The work under way at each kill
depends on the machine.
"""

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pyarrow.parquet
import pytest

from mqdb.settings import load_settings
from mqdb_client import Producer
from tests.fixtures.fault_load import Sender
from tests.fixtures.fault_spark import SparkApplication, SparkTrouble, require_java
from tests.fixtures.fault_trouble import killed, replay_told, wait_while
from tests.fixtures.faults import FaultyBroker, faulty_broker
from tests.fixtures.log import create_topic
from tests.fixtures.serve import query

RUNS: Final = int(os.environ.get("MQDB_FAULT_RUNS", "1"))
#: Of the application, of a worker and of PostgreSQL each.
KILLS: Final = int(os.environ.get("MQDB_FAULT_KILLS", "1"))
#: Between the kills, about.
SECONDS: Final = float(os.environ.get("MQDB_FAULT_SECONDS", str(2.0 * KILLS)))
FIRST_SEED: Final = int(os.environ.get("MQDB_FAULT_SEED", "0")) or random.randrange(1, 1_000_000)

SOURCE: Final = "orders"
TARGET: Final = "copies"

_QUEUES: Final = 4

#: A run in which less is copied has tested nothing.
LEAST_COPIED: Final = 300 * KILLS

#: Two executors of one core each. Of a task that is slower than others Spark runs a second attempt.
CLUSTER: Final = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "0",
    "spark.speculation.interval": "20ms",
}

PARTS: Final = {"maxRowsPerCommit": "5", "commitSessions": "2"}

# What a busy machine may take to start a JVM, and Spark to try again.
_PATIENCE_SECONDS: Final = 240.0

_COUNT: Final = """
    SELECT count(*) FROM mqdb.commit_log l JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
    WHERE t.topic = %s"""

_TEXTS: Final = "SELECT queue_id, text FROM mqdb.message WHERE topic = %s ORDER BY queue_id, queue_offset"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600 + 30 * SECONDS + 240 * KILLS)
@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("variant", ["local", "parts", "cluster"])
def test_a_topic_is_copied_exactly_once_and_in_order_whatever_is_killed(
    variant: str, run: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_java()
    seed = FIRST_SEED + run
    with ExitStack() as stack:
        broker = stack.enter_context(faulty_broker(tmp_path))
        with psycopg.connect(broker.dsn, autocommit=True) as connection:
            for name in (SOURCE, TARGET):
                create_topic(connection, name, _QUEUES)
            if variant == "parts":
                connection.execute("ALTER TABLE mqdb.sink_write SET LOGGED; ALTER TABLE mqdb.sink_stage SET LOGGED")
        broker.start_serving()
        application = SparkApplication(
            tmp_path,
            dsn=broker.dsn,
            source=SOURCE,
            target=TARGET,
            folder=str(tmp_path),
            config=CLUSTER if variant == "cluster" else {},
            sink=PARTS if variant == "parts" else {},
        )
        stack.callback(application.kill)
        wait = partial(wait_until_more_is_copied, broker)
        has_executors = variant == "cluster"
        trouble = SparkTrouble(random.Random(seed), broker, application, wait, has_executors=has_executors)
        again = f"MQDB_FAULT_SEED={seed} MQDB_FAULT_KILLS={KILLS} MQDB_FAULT_SECONDS={SECONDS:g}"
        stack.enter_context(replay_told(again, trouble.story, tmp_path))

        application.start()
        acknowledged = send_under_faults(broker, trouble)
        wait_until_all_is_copied(broker, tmp_path / "files")
        application.kill()

        sent, copied = (query(broker.dsn, _TEXTS, name) for name in (SOURCE, TARGET))
        batches = query(broker.dsn, "SELECT max(batch_id) + 1 FROM mqdb.sink_batch")[0][0]
        with capsys.disabled():
            print(f"\nseed {seed}: kills: {killed(trouble.kills)}; {len(copied):,} messages in {batches} batches")  # noqa: T201
        assert acknowledged <= {text for _, text in sent}, "acknowledged, and not there"
        assert changes(sent, copied) == {}, "not copied exactly once"
        assert by_key(copied) == by_key(sent), "the order of a key has changed"
        assert changes(copied, in_files(tmp_path / "files")) == {}, "not in Parquet exactly once"
        killed_at_least = ("application", "worker", "PostgreSQL", *(("executor",) if has_executors else ()))
        assert min(trouble.kills[what] for what in killed_at_least) >= KILLS
        assert len(copied) >= LEAST_COPIED


def send_under_faults(broker: FaultyBroker, trouble: SparkTrouble) -> set[str]:
    """Send until the trouble has ended; returns the acknowledged messages."""
    settings = load_settings(dsn=broker.dsn)
    with Producer("senders", settings=settings) as producer, Sender(producer, SOURCE) as sender:
        trouble.wait_until_busy()
        trouble.run(SECONDS, KILLS)
        trouble.wait_until_busy()
    return set(sender.acknowledged)


def count(broker: FaultyBroker, topic: str) -> int | None:
    """The number of messages in a topic; None while the server does not answer."""
    with suppress(psycopg.OperationalError):
        return int(query(broker.dsn, _COUNT, topic)[0][0])
    return None


def wait_until_more_is_copied(broker: FaultyBroker) -> None:
    """Wait until 20 more messages are copied."""
    least = (count(broker, TARGET) or 0) + 20
    wait_while(lambda: (count(broker, TARGET) or 0) < least, _PATIENCE_SECONDS, "nothing is copied")


def wait_until_all_is_copied(broker: FaultyBroker, files: Path) -> None:
    """Wait until all sent messages are copied, dispatched, and in the Parquet files."""

    def missing() -> int:
        return (count(broker, SOURCE) or 0) - len(query(broker.dsn, _TEXTS, TARGET))

    wait_while(missing, _PATIENCE_SECONDS, "not copied")
    wait_while(lambda: max(0, (count(broker, TARGET) or 0) - len(in_files(files))), _PATIENCE_SECONDS, "not in files")


def in_files(folder: Path) -> list[tuple[int, str]]:
    """The messages in the Parquet files that Spark has committed, as readers of the files see them."""
    # A driver that is killed while it commits leaves `.N.<uuid>.tmp` beside the logs of committed batches, with the
    # files of its attempt. The batch runs again, and writes others.
    logs = folder.glob("_spark_metadata/[0-9]*")
    entries = (json.loads(line) for log in logs for line in log.read_text().split("\n")[1:])
    names = {Path(entry["path"]).name for entry in entries if entry["action"] == "add"}
    tables = (pyarrow.parquet.read_table(folder / name) for name in names)
    return [(row["queue_id"], row["text"]) for table in tables for row in table.to_pylist()]


def test_a_commit_that_a_kill_has_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    for log, text in (("3", "committed"), (".3.1277111a.tmp", "cut short")):
        pyarrow.parquet.write_table(pyarrow.table({"queue_id": [0], "text": [text]}), tmp_path / f"{text}.parquet")
        entry = json.dumps({"path": f"{text}.parquet", "action": "add"})
        (tmp_path / "_spark_metadata" / log).write_text(f"v1\n{entry}")

    assert in_files(tmp_path) == [(0, "committed")]


def changes(sent: Iterable[tuple[int, str]], copied: Iterable[tuple[int, str]]) -> dict[str, int]:
    """The texts that occur more often (or, negative, less often) in the copy than in the topic."""
    difference = Counter(text for _, text in copied)
    difference.subtract(text for _, text in sent)
    return {text: times for text, times in difference.items() if times}


def by_key(messages: Sequence[tuple[int, str]]) -> dict[str, list[tuple[int, str]]]:
    """The queue and the text of each key's messages, in their order."""
    keys: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for queue_id, text in messages:
        keys[text.partition(":")[0]].append((queue_id, text))
    return dict(keys)
