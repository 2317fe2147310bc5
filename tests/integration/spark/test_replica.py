"""Reads of format("mqdb") from a real standby that has not yet replayed the messages planned on its primary."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from mqdb.pipeline.errors import ReplicaBehind
from mqdb.pipeline.read import engines
from mqdb.store.engine import create_engine
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.spark_source import bodies, read, send
from tests.fixtures.standby import Standby
from tests.fixtures.threads import Doing


@pytest.fixture(autouse=True)
def _no_idle_connection() -> Iterator[None]:
    yield
    engines.close_idle()


@pytest.fixture
def replay(standby: Standby) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A superuser's connection to the standby, which resumes replay at the end of the test."""
    with closing(psycopg.connect(standby.superuser_dsn, autocommit=True)) as admin:
        yield admin
        admin.execute("SELECT pg_wal_replay_resume()")


def test_a_read_waits_until_the_standby_has_replayed_what_was_planned(
    standby: Standby, replicated: Database, replay: psycopg.Connection[tuple[object, ...]]
) -> None:
    engine = create_engine(replicated.dsn)
    with engine.connect() as broker:
        route = topic(broker, "orders")
        send(broker, route, *"abc")
        wait_until(lambda: replay.execute("SELECT count(*) FROM mqdb.consume_queue").fetchone() == (3,))
        replay.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: replay.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))
        send(broker, route, *"de")
    engine.dispose()

    with pytest.raises(ReplicaBehind, match="up to offset 5, but ends at 3"):
        read(replicated, readUrl=standby.dsn, replicaWaitSeconds="0.2")
    wait_until(lambda: replay.execute(_READERS).fetchone() == (0,))  # that of the read before is gone
    waiting = Doing(lambda: read(replicated, readUrl=standby.dsn))
    # It has looked at the standby: so ADBC ends the transaction in which it has.
    wait_until(lambda: replay.execute(f"{_READERS} AND query = 'COMMIT'").fetchone() == (1,))
    replay.execute("SELECT pg_wal_replay_resume()")

    assert bodies(waiting.result()) == ["a", "b", "c", "d", "e"]


_READERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mqdb-spark'"
