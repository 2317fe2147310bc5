"""A pytest plugin for programs that use mqdb: a broker for tests, separate topics for each test, and a movable clock.

    pytest_plugins = ["mqdb_client.testing"]  # in conftest.py

The plugin is not registered as an entry point, because pytest would then import mqdb in every test run on a machine
where mqdb is installed.
"""

import itertools
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from mqdb.common.clock import LONGEST_AGO
from mqdb.embedded import EmbeddedPostgres, temporary_home
from mqdb.errors import Denied, NotFound
from mqdb.server import Server
from mqdb.settings import Settings
from mqdb.settings.layers import ENV_PREFIX
from mqdb.store.movable_clock import set_clock_ahead
from mqdb_client.admin.admin import Admin
from mqdb_client.option_rules import Rule

_CHANNEL = "mqdb_testing"

#: A batch of dispatch takes a few milliseconds, and the release of its lock is not announced.
_LOCKED_SECONDS = 0.005

_TIMEDELTA = Rule(lambda value: isinstance(value, timedelta), "must be a timedelta")

#: The pause between checks; a waiting call is also woken by each commit of an offset.
_TELL = f"""
CREATE FUNCTION public.mqdb_testing_tell() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('{_CHANNEL}', ''); RETURN NULL; END $$;
CREATE TRIGGER mqdb_testing AFTER INSERT OR UPDATE ON mqdb.consumer_offset EXECUTE FUNCTION public.mqdb_testing_tell();
CREATE TRIGGER mqdb_testing AFTER INSERT ON mqdb.offset_commit EXECUTE FUNCTION public.mqdb_testing_tell();
"""


class TestBroker:
    """A broker for tests, with its services, in this process."""

    __test__ = False  # pytest takes no class of this name for tests

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        """The DSN for clients: `Producer("shop", mqdb_broker.dsn)`."""
        self.admin = Admin(dsn)
        """An Admin for the broker."""
        self._ahead = timedelta(0)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_TELL.encode())

    def move_clock(self, by: timedelta) -> None:
        """Move the clock of the broker forward permanently: delayed messages and timers become due, and crons fire.

        For the broker, this time has passed everywhere: its services and clients count as silent for that long, until
        their next heartbeat.

        Raises ValueError if `by` is negative or too large, and ParameterInvalid if it is not a timedelta.
        """
        _TIMEDELTA.check("by", by)
        if by < timedelta(0):
            raise ValueError(f"the clock of a broker cannot go back, by {by}")
        if by > LONGEST_AGO - self._ahead:
            raise ValueError(f"the clock of a broker cannot go ahead by {by}; the limit is {LONGEST_AGO.days:,} days")
        with self.admin._access.connected() as connection:
            set_clock_ahead(connection, self._ahead + by)
        self._ahead += by

    def wait_until_consumed(self, group: str, topic: str, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Wait until a group has committed all current messages of a topic.

        Consumers commit when they shut down, and every `persist_consumer_offset_interval`, 5 s by default. A message
        that failed and was sent back for a retry counts as consumed.
        Raises AssertionError after the timeout, with the offsets reached in each queue; TopicNotFound; ParameterInvalid
        if `timeout` is not a timedelta.
        """
        _TIMEDELTA.check("timeout", timeout)
        seconds = timeout.total_seconds()
        deadline = time.monotonic() + seconds
        failure = f"group {group!r} has not consumed topic {topic!r} in {seconds:g} s"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"LISTEN {_CHANNEL}".encode())
            while not self.admin._access.dispatch():  # sent messages count even if they have no offset yet
                if time.monotonic() >= deadline:
                    raise AssertionError(f"{failure}; another session holds the lock of dispatch")
                time.sleep(_LOCKED_SECONDS)
            ends = self.admin.messages.end_of(topic)
            while True:
                reached = self.admin.offsets.committed(group, topic)
                missing = {queue: end for queue, end in ends.items() if reached.get(queue, 0) < end}
                if not missing:
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    where = ", ".join(
                        f"queue {queue}: {reached.get(queue, 0)} of {missing[queue]}" for queue in missing
                    )
                    raise AssertionError(f"{failure}; {where}")
                for _ in connection.notifies(timeout=left, stop_after=1):
                    pass


class TestTopics:
    """Topics and groups of one test, with unique names. The topics and groups are deleted when the test ends."""

    __test__ = False

    _numbers = itertools.count(1)

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker
        self._mark = secrets.token_hex(4)
        self._topics: list[str] = []
        self._groups: list[str] = []

    def topic(self, name: str = "topic", *, queues: int = 1) -> str:
        """Create a topic; returns its name, which starts with `name`."""
        topic = self._named(name)
        self._broker.admin.topics.create(topic, queues=queues)
        self._topics.append(topic)
        return topic

    def group(self, name: str = "group") -> str:
        """The name of a group, which starts with `name`. The group's first consumer creates the group."""
        self._groups.append(self._named(name))
        return self._groups[-1]

    def remove(self) -> None:
        """Delete all topics and groups, except groups that still have members."""
        for group in self._groups:
            with suppress(NotFound, Denied):
                self._broker.admin.groups.delete(group, with_topics=True)
        for topic in self._topics:
            with suppress(NotFound):
                self._broker.admin.topics.delete(topic, force=True)

    def _named(self, name: str) -> str:
        return f"{name}-{self._mark}-{next(self._numbers)}"


@pytest.fixture(scope="session")
def mqdb_broker() -> Iterator[TestBroker]:
    """A broker on an embedded PostgreSQL, which lasts for this test run."""
    with (
        pytest.MonkeyPatch.context() as environment,
        temporary_home() as home,
        EmbeddedPostgres(home, durable=False) as postgres,
        Server(Settings(dsn=postgres.dsn, home=home)),
    ):
        # Settings for other brokers, such as a pooler or a name, would mislead the clients of the tests.
        for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
            environment.delenv(name)
        environment.setenv(f"{ENV_PREFIX}HOME", str(home))
        broker = TestBroker(postgres.dsn)
        yield broker
        broker.admin.close()


@pytest.fixture
def mqdb_topics(mqdb_broker: TestBroker) -> Iterator[TestTopics]:
    """Topics and groups for one test."""
    topics = TestTopics(mqdb_broker)
    yield topics
    topics.remove()
