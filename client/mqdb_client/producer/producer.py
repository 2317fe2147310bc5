"""The producer: sends messages, and returns when the broker has stored them. RocketMQ: DefaultMQProducer."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from sqlalchemy import Connection

import mqdb
from mqdb.broker import route, send
from mqdb.broker.dispatch import dispatch, is_attended
from mqdb.broker.query import queue_offset_of
from mqdb.clock import Clock, SystemClock
from mqdb.errors import (
    BatchTooLarge,
    DispatchTimeout,
    IllegalState,
    MessageIllegal,
    MqdbError,
    NotSupported,
    ParameterInvalid,
    SendGivenUp,
    TopicNotFound,
)
from mqdb.group import DEFAULT_PRODUCER, check_group_name
from mqdb.message import Message, SendResult, SendStatus, check_message
from mqdb.settings import Settings
from mqdb.store.clients import ClientKind, Registration
from mqdb.store.commit_log import Record
from mqdb.store.topics import TopicRoute
from mqdb.topic import RETRY_PREFIX
from mqdb.unique_id import UniqueIdGenerator, format_unique_id
from mqdb_client.group_append import GroupAppend
from mqdb_client.held_connection import HeldConnection, NotRun, Overdue
from mqdb_client.instance import ClientInstance, settings_of
from mqdb_client.queue_selector import check_sharding_key
from mqdb_client.route import PublishQueues

T = TypeVar("T")

#: Bodies and properties of a batch together. Source: DefaultMQProducer.maxMessageSize.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024

# While a sender waits for a queue offset: pauses between two looks, and between two questions whether anybody
# dispatches at all.
_FIRST_LOOK_SECONDS: Final = 0.001
_LONGEST_LOOK_SECONDS: Final = 0.05
_ATTENDANCE_SECONDS: Final = 0.2


class _State(StrEnum):
    CREATED = "not started; call start(), or use it in a with block"
    RUNNING = "already running"
    SHUT_DOWN = "shut down"


class _Running(NamedTuple):
    """What a started producer works with."""

    instance: ClientInstance
    connection: HeldConnection
    appends: GroupAppend
    questions: HeldConnection


class Producer:
    """Sends messages of a group of producers. Start it once, use it from any number of threads, shut it down.

        with Producer("orders-service") as producer:
            producer.send(Message("orders", b"...", tag="paid", keys="order-17"), sharding_key="customer-4")

    Concurrent sends share statements and connection, so that threads cost little; a lone one waits for nobody.
    A send ends within `send_message_timeout`: stored, or with an error that says what is known. A lost connection
    comes back by itself. It does not survive a fork: the child starts a producer of its own.
    """

    def __init__(
        self,
        group: str,
        dsn: str | None = None,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Connects to nothing yet. Raises NameInvalid, and SettingInvalid or ParameterInvalid for the settings."""
        check_group_name(group, DEFAULT_PRODUCER)
        self.group = group
        self._settings = settings_of(dsn, settings)
        self._clock = clock or SystemClock()
        self._timeout_seconds = self._settings.send_message_timeout.total_seconds()
        self._unique_ids = UniqueIdGenerator(self._clock)
        self._queues: dict[str, PublishQueues] = {}
        self._life = threading.Lock()
        self._state = _State.CREATED
        self._running: _Running | None = None
        self._undo = ExitStack()

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and enter the group.

        Raises IllegalState when it was started before, or when this process has another producer of the group; what
        `ClientInstance.acquire` raises. After an error it can be started again.
        """
        with self._life:
            if self._state is not _State.CREATED:
                raise IllegalState(self._name, self._state)
            with ExitStack() as undo:
                instance = ClientInstance.acquire(self._settings)
                undo.callback(instance.release)
                kind = ClientKind.PRODUCER
                instance.register(Registration(instance.client_id, kind, self.group, mqdb.__version__))
                undo.callback(instance.unregister, self.group, kind)
                connection = HeldConnection(instance.connect)
                undo.callback(connection.close)
                connection.open()
                questions = HeldConnection(instance.connect)
                undo.callback(questions.close)
                appends = GroupAppend(connection, instance.target, self._timeout_seconds)
                undo.callback(appends.close)
                self._undo = undo.pop_all()
            self._running = _Running(instance, connection, appends, questions)
            self._state = _State.RUNNING

    def shutdown(self) -> None:
        """Let the sends under way end, leave the group and disconnect. Again: nothing happens."""
        with self._life:
            running, self._running = self._running, None
            self._state = _State.SHUT_DOWN
            undo = self._undo.pop_all()
            if running is None or not running.instance.is_forked:
                undo.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def _name(self) -> str:
        return f"producer {self.group!r}"

    def _work(self) -> _Running:
        running = self._running
        if running is None:
            raise IllegalState(self._name, self._state)
        running.instance.check_process()
        return running

    # -- sending ------------------------------------------------------------------------------

    def send(self, message: Message, sharding_key: str | None = None) -> SendResult:
        """Send one message, and return when it is stored.

        It goes to the queues of its topic in turn, or to the one that `sharding_key` chooses, so that messages with
        the same key stay in order. A topic that is not there is created where the broker and
        `auto_create_topic_enable` allow it.

        Raises what `check_message` raises, TopicNotFound, TopicNotWritable, StorageRefused: nothing is stored.
        SendGivenUp: the timeout is over, nothing is stored. SendTimeout: it is over, and nobody knows.
        BrokerUnavailable: the sentence says whether the message may be stored. IllegalState unless started.
        """
        running = self._work()
        check_sharding_key(sharding_key)
        _check(message)
        return self._send(running, (message,), message.topic, sharding_key)[0]

    def send_batch(self, messages: Sequence[Message], sharding_key: str | None = None) -> list[SendResult]:
        """Send messages of one topic at once: to one queue, in their order, all of them or none.

        The next batch goes to the next queue, unless `sharding_key` chooses it. Raises what `send` raises;
        ParameterInvalid for messages of several topics or none at all; BatchTooLarge over 4 MiB of bodies and
        properties; NotSupported for a retry topic. Source: MessageBatch.generateFromList.
        """
        running = self._work()
        check_sharding_key(sharding_key)
        messages = list(messages)
        if not messages:
            raise ParameterInvalid("messages", messages, "a batch needs at least one message")
        for message in messages:
            _check(message)
        topic = messages[0].topic
        if stranger := next((message.topic for message in messages if message.topic != topic), None):
            raise ParameterInvalid("messages", stranger, f"all messages of a batch go to one topic, here {topic!r}")
        if topic.startswith(RETRY_PREFIX):
            raise NotSupported("a batch to a retry topic")
        return self._send(running, messages, topic, sharding_key)

    def _send(
        self, running: _Running, messages: Sequence[Message], topic: str, sharding_key: str | None
    ) -> list[SendResult]:
        deadline = time.monotonic() + self._timeout_seconds
        born_time = self._clock.now()
        unique_ids = self._unique_ids.take(len(messages))
        has_failed = False
        while True:
            queues = self._queues_of(topic, running, deadline)
            queue_id = queues.choose(sharding_key)
            queue_key = queues.keys[queue_id]
            records = [
                send.record(message, queue_key, unique_id, born_time, running.instance.address)
                for message, unique_id in zip(messages, unique_ids, strict=True)
            ]
            _check_batch_size(records)
            try:
                positions = running.appends.append(records, topic, deadline)
                break
            except TopicNotFound:
                # Deleted since the route was learnt, and perhaps made again.
                running.instance.routes.forget(topic)
                if has_failed:
                    raise
                has_failed = True
        status, queue, find = SendStatus.SEND_OK, queues.queues[queue_id], self._find_queue_offset
        return [
            SendResult(status, format_unique_id(unique_id), queue, log_pos, partial(find, topic, queue_key, log_pos))
            for unique_id, log_pos in zip(unique_ids, positions, strict=True)
        ]

    def _queues_of(self, topic: str, running: _Running, deadline: float) -> PublishQueues:
        known = running.instance.routes.known(topic)
        if known is None:
            find = partial(self._find_or_create, topic, running)
            known = _ask(running.connection, find, deadline, SendGivenUp(topic, self._timeout_seconds))
        queues = self._queues.get(topic)
        if queues is None or queues.route is not known:
            queues = self._queues[topic] = PublishQueues(known, running.instance.broker_name)
        return queues

    def _find_or_create(self, topic: str, running: _Running, connection: Connection) -> TopicRoute:
        routes = running.instance.routes
        found = routes.ask(topic, connection)
        if found is None:
            if not self._settings.auto_create_topic_enable:
                raise TopicNotFound(topic)
            found = route.create_topic_automatically(connection, topic, self._settings.default_topic_queue_nums)
            routes.remember(found)
        return found

    # -- queue offsets ------------------------------------------------------------------------

    def _find_queue_offset(self, topic: str, queue_key: int, log_pos: int) -> int:
        """What `SendResult.queue_offset` asks for. Dispatches itself while nobody else does."""
        questions = self._work().questions
        questions.open()
        deadline = time.monotonic() + self._timeout_seconds
        late = DispatchTimeout(topic, log_pos, self._timeout_seconds)
        look = partial(queue_offset_of, queue_key=queue_key, log_pos=log_pos)
        pause, attended_until = _FIRST_LOOK_SECONDS, 0.0
        while (offset := _ask(questions, look, deadline, late)) is None:
            now = time.monotonic()
            if now >= attended_until:
                if _ask(questions, is_attended, deadline, late):
                    attended_until = now + _ATTENDANCE_SECONDS
                else:
                    _ask(questions, dispatch, deadline, late)
            if now + pause >= deadline:
                raise late
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK_SECONDS)
        return offset


def _ask(held: HeldConnection, work: Callable[[Connection], T], deadline: float, late: MqdbError) -> T:
    """Run what is no append; `late` is raised when it does not end in time, whatever it has done by then."""
    try:
        return held.run(work, deadline)
    except NotRun as not_run:
        if not_run.error is not None:
            raise copy.copy(not_run.error) from not_run.error.__cause__
        raise late from None
    except Overdue as overdue:
        raise late from overdue.__cause__


def _check(message: Message) -> None:
    if not isinstance(message, Message):
        raise MessageIllegal(f"{type(message).__name__} is no message; give a Message(topic, body)")
    check_message(message)


def _check_batch_size(records: Sequence[Record]) -> None:
    if len(records) > 1:
        size = sum(len(record.body) + len(record.properties) for record in records)
        if size > MAX_BATCH_BYTES:
            raise BatchTooLarge(len(records), size, MAX_BATCH_BYTES)
