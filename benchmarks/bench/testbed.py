"""The broker under test: a fresh one, or a given one that is restored to its former state.

Benchmarks of a cluster get a second broker of the same kind.

With a DSN, the benchmarks work on new topics and delete them afterwards. The records stay in the commit log until
retention drops their segments: the log is never deleted row by row.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy import Connection, delete

from benchmarks.bench import machine, reference
from mqdb.broker.dispatch import DispatchOutcome, dispatch, is_attended
from mqdb.broker.log.query import broker_info
from mqdb.broker.topics.topics import create_topic, delete_topic
from mqdb.common.dsn import BrokerDsn, redact
from mqdb.common.topic import TopicConfig, retry_topic
from mqdb.embedded import EmbeddedPostgres, temporary_home
from mqdb.errors import IllegalState, ParameterInvalid
from mqdb.store import migrations
from mqdb.store.engine import connected, driver, target_of
from mqdb.store.tables import subscription_group

APPLICATION: Final = "mqdb bench"
PREFIX: Final = "mqdb_bench_"

_LOCKED_SECONDS: Final = 0.005

_GROUP_NAME: Final = subscription_group.c.group_name

#: More than any machine appends in a second.
_MOST_A_SECOND: Final = 200_000

_OTHER_BENCHES = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()
"""


class Topic(NamedTuple):
    """A topic of a benchmark."""

    name: str
    queue_keys: tuple[int, ...]


class Testbed:
    """A broker to measure. `connection` is in AUTOCOMMIT; `below` is the driver's connection underneath."""

    #: Opens the second broker; None where only one is given.
    open_second: "Callable[[], Testbed] | None" = None

    def __init__(self, dsn: str, connection: Connection, *, is_given: bool) -> None:
        self.broker = BrokerDsn(broker_info(connection).broker_name, dsn)
        self.connection = connection
        self.below: psycopg.Connection[Any] = driver(connection)
        self.is_given = is_given
        self.server = machine.ServerClock(machine.postmaster_pid(self.below))
        #: Those that it has made so far.
        self.topics: list[Topic] = []

    @cached_property
    def second(self) -> "Testbed":
        """The second broker, started or connected on first use."""
        assert self.open_second is not None
        return self.open_second()

    def topic(self, name: str, queue_nums: int) -> Topic:
        """A new topic, which is deleted at the end."""
        name = PREFIX + name
        delete_topic(self.connection, name, force=True)
        config = TopicConfig(name, queue_nums, queue_nums)
        topic = Topic(name, create_topic(self.connection, config).queue_keys)
        self.topics.append(topic)
        return topic

    def make_room(self, seconds: float) -> None:
        """Create enough partitions for the messages of this period, whether or not a segment keeper runs."""
        (size,) = self.below.execute("SELECT segment_size FROM mqdb.broker").fetchone() or (1,)
        self.below.execute("SELECT mqdb.ensure_segments(%s)", (int(seconds * _MOST_A_SECOND) // size + 2,))

    def is_served(self) -> bool:
        """Whether a process runs the services, such as `mqdb serve` on the given database."""
        return is_attended(self.connection)

    def check_unserved(self, benchmark: str) -> None:
        """Raise ParameterInvalid if another process would do the measured work."""
        if self.is_served():
            reason = f"`mqdb serve` runs on it, and {benchmark} measures that work; stop it, or leave --dsn out"
            raise ParameterInvalid("--dsn", target_of(self.connection), reason)

    def dispatch_all(self) -> int:
        """Dispatch everything, or wait for the dispatcher if one runs.

        Returns how many messages were dispatched here.
        """
        messages = 0
        while (result := dispatch(self.connection)).outcome is not DispatchOutcome.IDLE:
            messages += result.messages
            if result.outcome is DispatchOutcome.LOCKED:
                time.sleep(_LOCKED_SECONDS)
        return messages

    def clean_up(self) -> None:
        """Delete everything that the benchmarks have created."""
        for topic in self.topics:
            delete_topic(self.connection, topic.name, force=True)
        groups = _GROUP_NAME.startswith(PREFIX, autoescape=True)
        for group in self.connection.scalars(delete(subscription_group).where(groups).returning(_GROUP_NAME)).all():
            delete_topic(self.connection, retry_topic(group), force=True)
        reference.drop(self.below)


@contextmanager
def open_testbed(given: Sequence[BrokerDsn], parent: Path | None = None) -> Iterator[Testbed]:
    """The given broker, else a fresh embedded PostgreSQL with full durability, which is removed at the end.

    The embedded PostgreSQL is in a directory below `parent`, or below the directory for temporary files. Raises
    SchemaMismatch if the database has another schema version, BrokerMisnamed if the broker has another name, and
    IllegalState while another benchmark runs on the broker, because the two would measure each other. `second` raises
    the same errors.
    """
    with ExitStack() as opened:
        testbed = opened.enter_context(_given(given[0]) if given else _fresh("broker-a", parent))
        if not given:
            testbed.open_second = lambda: opened.enter_context(_fresh("broker-b", parent))
        elif len(given) > 1:
            testbed.open_second = lambda: opened.enter_context(_given(given[1]))
        yield testbed


@contextmanager
def _given(broker: BrokerDsn) -> Iterator[Testbed]:
    with _connected(broker.dsn, is_given=True) as testbed:
        broker_info(testbed.connection).require_name(broker.name, redact(broker.dsn))
        yield testbed


@contextmanager
def _fresh(broker_name: str, parent: Path | None) -> Iterator[Testbed]:
    with temporary_home(parent=parent) as home, EmbeddedPostgres(home) as postgres:
        migrations.upgrade(postgres.dsn, broker_name=broker_name)
        with _connected(postgres.dsn, is_given=False) as testbed:
            yield testbed


@contextmanager
def _connected(dsn: str, *, is_given: bool) -> Iterator[Testbed]:
    with connected(dsn, APPLICATION) as connection:
        (others,) = driver(connection).execute(_OTHER_BENCHES, (APPLICATION,)).fetchone() or (0,)
        if others:
            raise IllegalState("another benchmark", "at work on this database; wait for its end")
        testbed = Testbed(dsn, connection, is_given=is_given)
        try:
            reference.create(testbed.below)
            yield testbed
        finally:
            if is_given:
                testbed.clean_up()
