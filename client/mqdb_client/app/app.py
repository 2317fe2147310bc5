"""The application object, which turns functions into listeners of consumer groups and recurring jobs."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from mqdb.broker.schedule.cron import CatchUp
from mqdb.common.group import ConsumeFromWhere, MessageModel, check_group_name
from mqdb.common.message import Message
from mqdb.common.topic import retry_topic
from mqdb.errors import GroupNotFound, ParameterInvalid, ShutdownTimedOut, TopicNotFound
from mqdb.selector.tags import ALL_TAGS
from mqdb.settings import Settings
from mqdb_client.admin.admin import Admin, BrokerAdmin
from mqdb_client.aio.producer import AsyncProducer, CallersAsyncConnection
from mqdb_client.aio.stop_signals import on_loop_stop_signal
from mqdb_client.app.app_consumers import AppConsumers
from mqdb_client.app.app_crons import AppCron
from mqdb_client.app.bodies import BODY_PROPERTY, encode
from mqdb_client.app.listener import Backoff, Listener
from mqdb_client.app.listener_group import ListenerGroup
from mqdb_client.client_config import settings_of
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageHook
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.producer.joined.callers_connection import CallersConnection
from mqdb_client.producer.sends.send_hooks import SendMessageHook
from mqdb_client.producer.sends.send_result import SendResult

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NO_PROPERTIES: Final[Mapping[str, str]] = {}

#: The time between checks whether a backlog is consumed.
_LOOK_SECONDS: Final = 0.1

#: Options of a consumer that a group of an application cannot set.
_NOT_CHOSEN: Final = frozenset({"group", "dsn", "settings", "consume_message_batch_max_size"})


class App:
    """An application: its listeners, its crons, and its sends.

        app = App()

        @app.listener("orders", group="billing", tag="paid || refunded", retries=5)
        async def bill(order: Order) -> None: ...

        @app.cron("30 7 * * mon-fri", timezone="Europe/Berlin")
        def report() -> None: ...

    If a function returns, its message is consumed; if the function raises an error, the message is retried. `mqdb
    worker shop.tasks:app` runs the application; `consuming` runs it within another program. The functions are not
    changed, so a test can call them.
    """

    def __init__(self, name: str | None = None, *, dsn: str | None = None, settings: Settings | None = None) -> None:
        """Create an application without connecting.

        `name` identifies the application as the group of its producer and the owner of its crons. By default `name` is
        the module that creates the application, such as `shop-tasks`. `dsn` and `settings` are as for Producer. Raises
        NameInvalid.
        """
        self.name = _module_of_caller() if name is None else name
        check_group_name(self.name)
        self._dsn = dsn
        self._settings = settings
        self._listeners: list[Listener] = []
        self._crons: dict[str, AppCron] = {}
        self._options: dict[str, dict[str, Any]] = {}
        self._guard = threading.Lock()
        self._producer: AsyncProducer | None = None
        self._send_hooks: list[SendMessageHook] = []
        #: The hooks for consumers that start later.
        self.consume_message_hooks: list[ConsumeMessageHook] = []

    @property
    def settings(self) -> Settings:
        """The settings of the application or of the environment. Raises ParameterInvalid, SettingInvalid."""
        return settings_of(self._dsn, self._settings)

    def use_settings(self, settings: Settings) -> None:
        """Use these settings, unless the application was made with settings.

        Call this method before sending or consuming.
        """
        if self._dsn is None and self._settings is None:
            self._settings = settings

    # -- functions --------------------------------------------------------------------------------

    def listener(
        self,
        topic: str,
        *,
        group: str,
        tag: str = ALL_TAGS,
        sql: str | None = None,
        retries: int | None = None,
        backoff: Backoff = None,
        dead_letter_on: type[Exception] | tuple[type[Exception], ...] = (),
        orderly: bool = False,
        exactly_once: bool = False,
    ) -> Callable[[_Function], _Function]:
        """Let a function consume the messages of a topic, as a member of a group.

        `tag` is a tag expression; `sql` is an SQL92 condition, as an alternative to `tag`. After `retries` retries a
        message becomes a dead letter; the default is the group's setting, 16 unless changed. `backoff` is the delay
        before each retry: a timedelta, or a function such as `exponential` returns; the default is the broker's
        delay levels. An exception in `dead_letter_on` makes the message a dead letter immediately. With `orderly`, the
        function gets one message of each queue at a time, in order; a failed message is retried in its place, after 30
        s at most. With `exactly_once`, writes through a parameter annotated with Connection, Session, AsyncConnection
        or AsyncSession are committed together with the offset.

        The first parameter gets the message if it is annotated with ReceivedMessage or has no annotation. A first
        parameter of any other type gets the body as a value of that type. If a body cannot be read as this type, the
        message becomes a dead letter immediately. The listeners of a group form one consumer. If several listeners have
        the same topic, their tags must differ.

        Raises NameInvalid, TagExpressionInvalid, SelectorSyntaxError, and ParameterInvalid for arguments that cannot be
        combined.
        """
        if sql is not None and tag != ALL_TAGS:
            raise ParameterInvalid("tag", tag, "give tag or sql, not both")
        expression = tag if sql is None else MessageSelector.by_sql(sql)
        dead_letter_on = dead_letter_on if isinstance(dead_letter_on, tuple) else (dead_letter_on,)

        def register(function: _Function) -> _Function:
            self._add(
                Listener(
                    function,
                    topic,
                    group,
                    expression,
                    retries=retries,
                    backoff=backoff,
                    dead_letter_on=dead_letter_on,
                    orderly=orderly,
                    exactly_once=exactly_once,
                )
            )
            return function

        return register

    def cron(
        self,
        text: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        catch_up: CatchUp = CatchUp.ONCE,
        retries: int | None = None,
        backoff: Backoff = None,
        dead_letter_on: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Callable[[_Function], _Function]:
        """Call a function at the times given by a cron text, each time in only one process.

        When the application starts to consume, it creates the cron, or changes it to these values. By default cron,
        topic and group are named after the function. `catch_up` determines what happens for times at which no broker
        was running. The other options are the options of `listener`; the function may take the message or no argument.

        Raises NameInvalid and ParameterInvalid; an invalid text is refused when the cron is created.
        """
        if not isinstance(text, str):
            raise ParameterInvalid("text", text, "is not text; write for example @app.cron('30 7 * * mon-fri')")
        dead_letter_on = dead_letter_on if isinstance(dead_letter_on, tuple) else (dead_letter_on,)

        def register(function: _Function) -> _Function:
            called = name or str(getattr(function, "__name__", ""))
            cron = AppCron(called, text, timezone, topic or called, group or called, catch_up)
            if called in self._crons:
                raise ParameterInvalid("name", called, "another cron of the application has it")
            self._add(
                Listener(
                    function,
                    cron.topic,
                    cron.group,
                    cron.tag,
                    retries=retries,
                    backoff=backoff,
                    dead_letter_on=dead_letter_on,
                )
            )
            self._crons[called] = cron
            if group is None:  # its own topic; the first firing may come before the first member
                first = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET}
                self._options[called] = first | self._options.get(called, {})
            return function

        return register

    def configure_group(self, group: str, **options: Any) -> None:
        """Set options of a group's consumer, such as `consume_thread_nums=50`. The options are those of PushConsumer.

        Raises ParameterInvalid. An application does not start if a group has options but no listener.
        """
        known = {each.name for each in fields(PushConsumerConfig)} - _NOT_CHOSEN
        for name in options.keys() - known:
            raise ParameterInvalid(name, options[name], f"is not one of {', '.join(sorted(known))}")
        PushConsumerConfig(group, **options)
        self._options[group] = self._options.get(group, {}) | options

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call `hook` around each call of a listener, in consumers that start later."""
        self.consume_message_hooks.append(hook)

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Call `hook` around each send. Register the hook before the first send."""
        self._send_hooks.append(hook)

    def _add(self, listener: Listener) -> None:
        members = [each for each in self._listeners if each.group == listener.group]
        ListenerGroup(listener.group, [*members, listener])
        self._listeners.append(listener)

    # -- its parts ------------------------------------------------------------------------------

    def groups(self, *names: str) -> list[ListenerGroup]:
        """The listeners by group, of all groups or only of the groups in `names`.

        Raises ParameterInvalid for a group without listeners, even if the group has options: its name is misspelled, or
        the module with its listeners is not imported.
        """
        known: dict[str, list[Listener]] = {}
        for listener in self._listeners:
            known.setdefault(listener.group, []).append(listener)
        for name in (*names, *self._options):
            if name not in known:
                have = ", ".join(known) or "none"
                raise ParameterInvalid("group", name, f"application {self.name!r} has no listener of it; it has {have}")
        return [ListenerGroup(name, listeners) for name, listeners in known.items() if not names or name in names]

    def crons(self, *groups: str) -> list[AppCron]:
        """The crons of all groups, or only of the named groups."""
        return [cron for cron in self._crons.values() if not groups or cron.group in groups]

    def options_of(self, group: str) -> dict[str, Any]:
        """The options that `configure_group` has set."""
        return dict(self._options.get(group, {}))

    # -- consuming --------------------------------------------------------------------------------

    @asynccontextmanager
    async def consuming(self, *groups: str) -> AsyncIterator[None]:
        """Consume in this process and loop while the block runs: all groups, or only the named groups.

        Raises the errors of a consumer's start and shutdown; CronExists if another application has a cron with the same
        name; ParameterInvalid for a group without listeners, or for a body type with an annotation that cannot be
        resolved.
        """
        consumers = AppConsumers(self, groups)
        await consumers.start()
        try:
            yield
        except BaseException:
            with suppress(ShutdownTimedOut):  # it was logged, and the error that ends the block is raised
                await consumers.stop()
            raise
        await consumers.stop()

    async def drain(self, *groups: str) -> None:
        """Wait until all groups, or only the named groups, have consumed all messages.

        The consumers of the groups must be running. Consumers commit every 5 s, unless `configure_group` sets
        `persist_consumer_offset_interval`. Messages waiting for a retry do not count. Broadcasting groups are not
        waited for.
        """
        # Members of a broadcasting group keep their offsets in files.
        wanted = [
            group
            for group in self.groups(*groups)
            if self.options_of(group.name).get("message_model") is not MessageModel.BROADCASTING
        ]
        with Admin(settings=self.settings) as admin:
            while await asyncio.to_thread(_are_behind, admin, wanted):
                await asyncio.sleep(_LOOK_SECONDS)

    def run(self, *groups: str) -> None:
        """Consume until SIGINT or SIGTERM, in this process. Raises the errors of `consuming`."""
        asyncio.run(self._run(groups))

    async def _run(self, groups: tuple[str, ...]) -> None:
        stopped = asyncio.Event()
        with on_loop_stop_signal(stopped.set):
            async with self.consuming(*groups):
                await stopped.wait()

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        delay: timedelta | None = None,
        deliver_at: datetime | int | None = None,
        sharding_key: str | None = None,
        connection: "CallersConnection | None" = None,
    ) -> SendResult:
        """Send a message. A body that is neither bytes nor text, such as a dataclass, a model or a dict, becomes JSON.

        The other arguments are as for Message and `Producer.send`. In a coroutine, use `asend`. Raises BodyInvalid for
        a body that cannot be read back unchanged from its JSON, and the errors of Message and `Producer.send`.
        """
        message = _message(topic, body, tag, keys, properties, delay, deliver_at)
        producer = self._producer or self._start_producer()
        return producer.synchronous.send(message, sharding_key, connection=connection)

    async def asend(
        self,
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        delay: timedelta | None = None,
        deliver_at: datetime | int | None = None,
        sharding_key: str | None = None,
        connection: "CallersAsyncConnection | None" = None,
    ) -> SendResult:
        """Send a message from a coroutine. See `send`."""
        message = _message(topic, body, tag, keys, properties, delay, deliver_at)
        producer = self._producer
        if producer is None:
            producer = await asyncio.to_thread(self._start_producer)
        return await producer.send(message, sharding_key, connection=connection)

    def close(self) -> None:
        """Wait for the sends under way, and disconnect; a later send reconnects. In a coroutine, use `aclose`.

        Raises IllegalState in an event loop that has called `asend`, because the call would wait for this loop.
        """
        if (producer := self._producer) is not None:
            producer.synchronous.shutdown()
            with self._guard:
                if self._producer is producer:
                    self._producer = None

    async def aclose(self) -> None:
        """Close the application from a coroutine. See `close`."""
        await asyncio.to_thread(self.close)

    def _start_producer(self) -> AsyncProducer:
        with self._guard:
            if (producer := self._producer) is None:
                producer = AsyncProducer(self.name, settings=self.settings)
                for hook in self._send_hooks:
                    producer.register_send_message_hook(hook)
                producer.synchronous.start()
                self._producer = producer
        return producer

    def __repr__(self) -> str:
        return f"App({self.name!r})"


def _message(
    topic: str,
    body: object,
    tag: str | None,
    keys: Iterable[str] | str,
    properties: Mapping[str, str],
    delay: timedelta | None,
    deliver_at: datetime | int | None,
) -> Message:
    encoded = encode(body)
    message = Message(topic, encoded.content, tag, keys, properties, delay=delay, deliver_at=deliver_at)
    if BODY_PROPERTY in message.properties:
        reason = "is set by the application, which knows what the body is; leave it out, or send by a Producer"
        raise ParameterInvalid(BODY_PROPERTY, message.properties[BODY_PROPERTY], reason)
    return message.with_properties({BODY_PROPERTY: encoded.mark})


def _are_behind(admin: Admin, groups: Iterable[ListenerGroup]) -> bool:
    for broker in admin.chosen():
        if not broker._access.dispatch():
            return True  # sent messages may not be in their queues yet
        for group in groups:
            used = {topic for topic in group.subscriptions if _is_used(broker, topic)}
            # Topics to which only older code subscribed stay in the group's lag and are not consumed.
            wanted = {*group.subscriptions, retry_topic(group.name)}
            with suppress(GroupNotFound):
                lags = {each.topic: each.lag for each in broker.groups.topics(group.name)}
                # A topic created after the start has no lag until members find it.
                if used - lags.keys() or any(lags[topic] for topic in wanted & lags.keys()):
                    return True
    return False


def _is_used(broker: BrokerAdmin, topic: str) -> bool:
    try:
        return any(broker.messages.end_of(topic).values())
    except TopicNotFound:
        return False


def _module_of_caller() -> str:
    """The name of the module that creates an application, changed to a valid group name."""
    scope = sys._getframe(2).f_globals
    module = str(scope.get("__name__", "app"))
    if module == "__main__":
        spec, file = scope.get("__spec__"), scope.get("__file__")
        module = spec.name if spec is not None else Path(file).stem if file else "app"
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in module)
