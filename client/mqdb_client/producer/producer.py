"""The producer: sends messages, and returns when the broker has stored them. RocketMQ: DefaultMQProducer."""

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import ClassVar, Self

import mqdb
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.common.compression import compress
from mqdb.common.message import Message, MessageQueue, check_message
from mqdb.common.recall_handle import decode_handle
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import check_topic_name
from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id
from mqdb.errors import IllegalState
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb_client.client_config import configured_by, settings_of
from mqdb_client.cluster import Cluster
from mqdb_client.leaving import leave_in_time
from mqdb_client.option_rules import seconds_to_wait, takes
from mqdb_client.process_hooks import ClientOperation, operations
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.joined.callers_connection import CallersConnection
from mqdb_client.producer.joined.joined_send import check_untimed
from mqdb_client.producer.queues.queue_choice import Target, target_of
from mqdb_client.producer.queues.queue_selector import MessageQueueSelector
from mqdb_client.producer.requests.request_reply import ReplyMessage, check_timeout
from mqdb_client.producer.running_producer import ProducerState, RunningProducer
from mqdb_client.producer.sends.batch import MessageBatch, check_batch, check_unscheduled, list_of_messages
from mqdb_client.producer.sends.recalling import recall
from mqdb_client.producer.sends.send_hooks import CheckForbiddenHook, Hooks, SendMessageHook, SendMode
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.producer.sends.sending import PendingSend
from mqdb_client.producer.sends.sent_messages import SentMessages


class Producer:
    """Sends messages for a producer group. Start it once, use it from any number of threads, shut it down.

        with Producer("orders-service") as producer:
            producer.send(Message("orders", b"...", tag="paid", keys="order-17"), sharding_key="customer-4")

    Concurrent sends share statements and a connection, so threads cost little; a single send does not wait for others.
    A send ends within its timeout: either the message is stored, or an error tells whether it is stored. The producer
    reconnects by itself, and retries a send on a lost connection without storing it twice. If the settings name several
    brokers, messages go to all brokers that have the topic; a broker that is down is skipped. A producer does not
    survive a fork: the child has to start its own producer.
    """

    #: Whether the broker can ask this producer for the state of its group's transactions.
    _checks_transactions: ClassVar[bool] = False

    @configured_by(ProducerConfig)
    def __init__(self, config: ProducerConfig) -> None:
        """Create a producer without connecting.

        Raises NameInvalid, ParameterInvalid, and SettingInvalid for the settings.
        """
        self._configure(config)

    def _configure(self, config: ProducerConfig) -> None:
        self._config = config
        self._settings = settings_of(config.dsn, config.settings)
        self._clock = config.clock
        self._timeout_seconds = _seconds(self._settings.send_message_timeout)
        self._unique_ids = UniqueIdGenerator(self._clock)
        self._sent = SentMessages(lambda: self._work().links, self._timeout_seconds)
        self._hooks = Hooks()
        self._life = threading.RLock()
        self._state = ProducerState.CREATED
        self._running: RunningProducer | None = None
        self._undo = ExitStack()

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._config.group

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and join the group.

        At least one broker must be up; the producer connects to the others when they come up.
        Raises IllegalState if the producer was started before, or if this process has another producer of the group;
        the errors of `Cluster`; CompressionUnavailable; ParameterInvalid if the broker's default durability is
        impossible behind a pooler. After an error, the producer can be started again.
        """
        with self._life:
            if self._state is not ProducerState.CREATED:
                raise IllegalState(self._name, self._state)
            if self._config.compression is not None:
                compress(b"", self._config.compression)  # a missing library is noticed now, not at the first large body
            with ExitStack() as undo:
                at_exit = partial(_shut_down_at_exit, weakref.ref(self))
                atexit.register(at_exit)
                undo.callback(atexit.unregister, at_exit)
                cluster = Cluster(self._settings, self._config.instance_name)
                undo.callback(cluster.release)
                client_id = cluster.instances[0].client_id
                registration = Registration(client_id, ClientKind.PRODUCER, self.group, mqdb.__version__)
                cluster.register(registration._replace(checks_transactions=self._checks_transactions))
                running = RunningProducer(
                    self._config, self._settings, cluster, self._hooks, self._unique_ids, self._clock, self._sent
                )
                undo.callback(running.disconnect)
                running.open()
                self._undo = undo.pop_all()
            self._running = running
            self._state = ProducerState.RUNNING

    def shutdown(self) -> None:
        """Wait for the sends under way, leave the group and disconnect. Waits up to 5 s for a silent broker.

        Running producers are shut down when the program exits. A second call, a call during a shutdown (for instance in
        a callback) and a call in a forked child have no effect.
        Raises IllegalState in the callback of an async send, because the shutdown would wait for this callback. Do not
        call `shutdown` in a signal handler, which may have interrupted a send; set a flag or raise an exception there.
        """
        if sys.is_finalizing():  # a late __del__: the threads that it would wait for are gone
            return
        if self._is_forked:
            # The producer's threads are not in this process, and may have held the lock.
            self._life = threading.RLock()
            self._running = None
            self._state = ProducerState.SHUT_DOWN
            self._undo.pop_all()
            return
        running = self._running
        if running is not None and running.is_own_thread():
            raise IllegalState(self._name, "waiting for this callback; call shutdown() in another thread")
        with self._life:
            running, self._running = self._running, None
            self._state = ProducerState.SHUT_DOWN
            undo = self._undo.pop_all()
        # Without the lock: a callback would wait for the lock, and this call for the callback.
        if running is not None:
            try:
                running.close()
            finally:
                leave_in_time(self.group, undo.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from the process that runs the producer."""
        return self._running is not None and self._running.cluster.is_forked

    @property
    def _name(self) -> str:
        return f"producer {self.group!r}"

    def _work(self) -> RunningProducer:
        running = self._running
        if running is None:
            raise IllegalState(self._name, self._state)
        if running.instance.is_forked:
            running.instance.check_process()
        return running

    # -- sending ------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        selector_argument: object = None,
        connection: "CallersConnection | None" = None,
        timeout: timedelta | None = None,
    ) -> SendResult:
        """Send one message, and return when it is stored.

        By default messages go to the queues of their topic in turn, over all brokers. `sharding_key` chooses a queue so
        that messages with the same key stay in order, `queue` names the queue, and `selector` returns the queue. Only a
        send without a chosen queue is retried, up to `retry_times_when_send_failed` times, if possible on another
        broker. A missing topic is created if the broker and `auto_create_topic_enable` allow it.

        A message to be delivered later is stored immediately, and goes to its queue when the broker's clock reaches its
        time: never early, and only once.

        With `connection`, a Connection or Session of SQLAlchemy, a psycopg.Connection or the connection of Django, the
        message becomes part of the caller's transaction on that broker: it is stored when the caller commits. `timeout`
        is not allowed in this case.

        Raises the errors of `check_message`, RouteNotFound, TopicNotFound, TopicNotWritable, QueueNotFound,
        StorageRefused, BrokerUnavailable: nothing is stored. SendGivenUp after the timeout: nothing is stored.
        SendOutcomeUnknown after the timeout: the message may be stored. IllegalState if the producer is not started, or
        if a signal handler or finalizer sends while its thread is in another send.
        """
        running = self._work()
        check_message(message, self._config.max_message_size_bytes)
        target = target_of(message, sharding_key, queue, selector, selector_argument)
        if connection is not None:
            check_untimed(timeout)
            return running.joined_sending.send(connection, (message,), target)[0]
        if isinstance(message, ReplyMessage):
            sent = running.reply_sending.send(message, self._reply_seconds(timeout))
            if sent is not None:
                return sent
        return running.sending.send(self._pending((message,), target, SendMode.SYNC, timeout))[0]

    def send_batch(
        self,
        messages: Sequence[Message],
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        connection: "CallersConnection | None" = None,
        timeout: timedelta | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together: to one queue, in order, all or none.

        Batches go to the queues in turn, unless `sharding_key` or `queue` chooses a queue. `split_batches` splits a
        list of any size into batches. With `connection`, the batch may contain several topics and be of any size.
        Raises the errors of `send`; ParameterInvalid for messages of several topics or an empty batch; BatchTooLarge if
        bodies and properties exceed 4 MiB; NotSupported for a retry topic, and for messages to be delivered later.
        Source: MessageBatch.generateFromList.
        """
        running = self._work()
        messages = list_of_messages(messages)
        if connection is not None:
            check_untimed(timeout)
            for message in messages:
                check_message(message, self._config.max_message_size_bytes)
                check_unscheduled(message)
        else:
            check_batch(messages, self._config.max_message_size_bytes)
        if not messages:
            return []
        target = target_of(messages[0], sharding_key, queue)
        if connection is not None:
            return running.joined_sending.send(connection, MessageBatch(messages), target)
        return running.sending.send(self._pending(MessageBatch(messages), target, SendMode.SYNC, timeout))

    def send_async(
        self,
        message: Message,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        selector_argument: object = None,
        callback: "Callable[[Future[SendResult]], None] | None" = None,
        timeout: timedelta | None = None,
    ) -> "Future[SendResult]":
        """Send one message without waiting; the future gets the result, or the error that `send` would raise.

        `callback` is called with the completed future, in one of the few threads that complete the sends of this
        producer (or in this thread if the future is already done), so it must be quick and must not wait for another
        send. In asyncio, use `mqdb_client.aio.AsyncProducer`. The send is retried up to
        `retry_times_when_send_async_failed` times, and only if the broker could not be reached. A send to a chosen
        queue is retried on the same broker.

        Waits while `back_pressure_for_async_send_num` messages or `_size_bytes` are under way. Raises errors in the
        message immediately, and SendGivenUp if there is no room before the timeout.
        """
        running = self._work()
        check_message(message, self._config.max_message_size_bytes)
        if callback is not None:
            takes("future").check("callback", callback)
        target = target_of(message, sharding_key, queue, selector, selector_argument)
        future: Future[SendResult] | None = None
        if isinstance(message, ReplyMessage):
            future = running.reply_sending.send_async(message, self._reply_seconds(timeout))
        if future is None:
            future = running.async_send.submit(self._pending((message,), target, SendMode.ASYNC, timeout))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def send_oneway(
        self,
        message: Message,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        selector_argument: object = None,
    ) -> None:
        """Send one message without returning a result. There is only one attempt, and a failure is only logged.

        Waits and raises like `send_async`.
        """
        running = self._work()
        check_message(message, self._config.max_message_size_bytes)
        target = target_of(message, sharding_key, queue, selector, selector_argument)
        if isinstance(message, ReplyMessage) and running.reply_sending.send_oneway(message, self._timeout_seconds):
            return
        running.async_send.submit_oneway(self._pending((message,), target, SendMode.ONEWAY, None))

    def request(self, message: Message, timeout: timedelta, sharding_key: str | None = None) -> ReceivedMessage:
        """Send a message and wait for the reply, which a consumer creates with `create_reply_message` and sends.

        `timeout` covers the send and the reply. Raises RequestTimeout; the errors of `send`; IllegalState if the
        producer is shut down during the wait. Source: DefaultMQProducerImpl.request.
        """
        running = self._work()
        check_message(message, self._config.max_message_size_bytes)
        return running.request_reply.request(
            message, timeout, lambda request, time_left: self.send(request, sharding_key, timeout=time_left)
        )

    def request_async(
        self,
        message: Message,
        timeout: timedelta,
        sharding_key: str | None = None,
        *,
        callback: "Callable[[Future[ReceivedMessage]], None] | None" = None,
    ) -> "Future[ReceivedMessage]":
        """Send a request without waiting for its reply. The future gets the reply, or the error.

        `callback` is called with the completed future, in the thread that completes all requests of this producer, so
        it must be quick.
        """
        running = self._work()
        check_message(message, self._config.max_message_size_bytes)
        future = running.request_reply.request_async(
            message, timeout, lambda request, time_left: self.send_async(request, sharding_key, timeout=time_left)
        )
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic to which messages can be sent, on all brokers.

        A missing topic is created as for a send. Raises NameInvalid, and the errors that `send` raises before sending.
        """
        check_topic_name(topic)
        deadline = time.monotonic() + self._timeout_seconds
        return self._work().routes.find(topic, deadline, self._timeout_seconds).queues

    def outcome(self, message_id: str) -> SendResult | None:
        """The result of a send, by the unique id of the message; None if no broker has the message.

        After a SendOutcomeUnknown of this producer, None is final: no broker will store the message later. For other
        ids, None is not final while the send is under way. Raises ParameterInvalid if `message_id` is not a message id;
        BrokerUnavailable if a broker that may have the message does not answer within the send timeout;
        SendOutcomeUnknown if the message is not stored but may still be stored later, which cannot be ruled out behind
        a pooler.
        """
        return self._sent.outcome(message_id, self._work().sending.unknown)

    def recall(self, handle: str) -> RecallStatus:
        """Recall a message before its time of delivery, by the `recall_handle` of its SendResult.

        A recalled message is never delivered. Raises RecallHandleInvalid, TopicNotFound; BrokerUnavailable if there is
        no answer within the send timeout. After BrokerUnavailable the outcome is unknown, so call `recall` again.
        Source: DefaultMQProducerImpl.recallMessage.
        """
        running = self._work()
        with operations.around(ClientOperation.RECALL, self.group, running.instance.client_id) as context:
            if context is not None:
                found = decode_handle(handle)
                context.topic, context.broker_name = found.topic, found.broker_name
                context.message_ids = (format_unique_id(found.unique_id),)
            status = recall(running.links, handle, self._timeout_seconds)
            if context is not None:
                context.outcome = status
        return status

    # -- hooks --------------------------------------------------------------------------------

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Call `hook` before and after each attempt, starting with the next attempt.

        Raises ParameterInvalid if `hook` is not a hook.
        """
        self._hooks.register_send_message_hook(hook)

    def register_check_forbidden_hook(self, hook: CheckForbiddenHook) -> None:
        """Let `hook` decide whether an attempt may be made, starting with the next attempt. Raises ParameterInvalid."""
        self._hooks.register_check_forbidden_hook(hook)

    def _reply_seconds(self, timeout: timedelta | None) -> float:
        return self._timeout_seconds if timeout is None else _seconds(timeout)

    def _pending(
        self, messages: Sequence[Message], target: Target, mode: SendMode, timeout: timedelta | None
    ) -> PendingSend:
        seconds = self._timeout_seconds if timeout is None else _seconds(timeout)
        began = time.monotonic()
        return PendingSend(messages, self._unique_ids, self._clock.now(), target, mode, seconds, began, began + seconds)


def _shut_down_at_exit(reference: "weakref.ref[Producer]") -> None:
    producer = reference()
    # In a forked child its lock may be held by a thread that does not exist there.
    if producer is not None and producer._running is not None and not producer._is_forked:
        producer.shutdown()


def _seconds(timeout: timedelta) -> float:
    check_timeout(timeout)
    return seconds_to_wait(timeout)
