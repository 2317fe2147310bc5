"""A synchronous standby does not answer: only senders that asked for a second copy wait."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from mqdb.common.durability import Durability
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.message import SendStatus
from mqdb.common.received_message import ReceivedMessage
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb_client import ConsumeConcurrentlyStatus, Message, Producer, PushConsumer
from tests.fixtures.consumers import LATER, Inbox
from tests.fixtures.log import append_placed, create_topic, dispatch_all, scalar, settle
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.sleeping import ASLEEP, state
from tests.fixtures.standby import Standby
from tests.fixtures.threads import Doing

_names = itertools.count(1)


@pytest.fixture
def topic(replicated: Database) -> str:
    name = f"orders-{next(_names)}"
    create_topic(replicated.connect(options="-c synchronous_commit=local"), name, 4)
    return name


@pytest.fixture
def served(replicated: Database) -> Iterator[Server]:
    with Server(load_settings(dsn=replicated.dsn)) as server:
        wait_until(lambda: server.is_leader)
        yield server


@contextmanager
def consuming(replicated: Database, topic: str, inbox: Inbox) -> Iterator[None]:
    consumer = PushConsumer(f"readers-{topic}", replicated.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(topic)
    consumer.register_listener(inbox)
    with consumer:
        yield


class FailsOnce(Inbox):
    """A listener that fails each message the first time; the message is delivered again a second later."""

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        if any(message.reconsume_times == 0 and message.body == b"again" for message in messages):
            return LATER
        return super().__call__(messages)


def test_services_and_new_members_wait_for_no_standby(
    standby: Standby, replicated: Database, topic: str, served: Server
) -> None:
    settings = load_settings(dsn=replicated.dsn)
    inbox = FailsOnce()
    with standby.paused(), Producer("senders", settings=settings) as producer:
        producer.send(Message(topic, "before any member"))
        with consuming(replicated, topic, inbox):
            producer.send(Message(topic, "now"))
            producer.send(Message(topic, "again"))
            producer.send(Message(topic, "delayed", delay_level=1))
            producer.send(Message(topic, "timed", deliver_at=datetime.now(UTC) + timedelta(seconds=1)))
            inbox.wait_for(5, 60)
    assert sorted(inbox.bodies) == ["again", "before any member", "delayed", "now", "timed"]


@pytest.mark.parametrize(("synchronous_commit", "places"), [("on", False), ("local", True)])
def test_an_append_that_waits_for_the_standby_places_nothing(
    replicated: Database, topic: str, synchronous_commit: str, places: bool
) -> None:
    """An append that waits for the standby places nothing.

    A placed append would keep the lock of dispatch until the standby answers.
    """
    log = replicated.connect(options="-c synchronous_commit=local")
    queue = scalar(
        log, "SELECT min(queue_key) FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = %s", [topic]
    )
    dispatch_all(log)
    settle(log)

    ((_, offset),) = append_placed(replicated.connect(options=f"-c synchronous_commit={synchronous_commit}"), queue)

    assert offset == (0 if places else None)


def test_a_send_that_waits_for_the_standby_holds_up_nobody_else(
    standby: Standby, replicated: Database, topic: str, served: Server
) -> None:
    """A send that waits for the standby holds up no other session.

    The commit of the send may notify the dispatcher, and PostgreSQL makes one such commit wait for another.
    """
    settings = load_settings(dsn=replicated.dsn, send_message_timeout="20s")
    inbox = Inbox()
    with (
        Producer("careful", settings=settings, durability=Durability.SYNC_MASTER) as careful,
        Producer("usual", settings=settings) as usual,
        consuming(replicated, topic, inbox),
    ):
        assert careful.send(Message(topic, "both there")).status is SendStatus.SEND_OK
        usual.send(Message(topic, "all there"))
        inbox.wait_for(2)
        wait_until(lambda: state(replicated) in ASLEEP)
        with standby.paused():
            waiting = Doing(lambda: careful.send(Message(topic, "waits")))
            wait_until(lambda: replicated.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            usual.send(Message(topic, "does not wait"))
            wait_until(lambda: "does not wait" in inbox.bodies)
            assert waiting.is_running
        waiting.result()
