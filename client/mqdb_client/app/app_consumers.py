"""The consumers of an application in this process, one per group."""

import asyncio
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

from mqdb.settings import Settings
from mqdb_client.aio.push_consumer import AsyncPushConsumer
from mqdb_client.app.app_crons import AppCron, AppCrons
from mqdb_client.app.listener_group import ListenerGroup
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageHook
from mqdb_client.consumer.push_consumer import PushConsumer

_Consumer: TypeAlias = PushConsumer | AsyncPushConsumer

#: The time between commits of offsets if a caller waits for them.
_SOON: Final = timedelta(milliseconds=100)


class ConsumingApp(Protocol):
    """The part of an application that its consumers use; implemented by `App`."""

    name: str
    consume_message_hooks: list[ConsumeMessageHook]

    @property
    def settings(self) -> Settings: ...

    def groups(self, *names: str) -> list[ListenerGroup]: ...

    def crons(self, *groups: str) -> list[AppCron]: ...

    def options_of(self, group: str) -> dict[str, Any]: ...


class AppConsumers:
    """The consumers of one application. The consumers are started once, then stopped once, in the same event loop.

    `groups` are the names of groups; without names, all groups are consumed.
    """

    def __init__(self, app: ConsumingApp, groups: tuple[str, ...] = (), *, commits_soon: bool = False) -> None:
        """`commits_soon` makes consumers commit often, for callers that wait for `App.drain`.

        Raises ParameterInvalid for a group without listeners, or for a body type with an annotation that cannot be
        resolved.
        """
        self._app = app
        self._names = groups
        self._groups = app.groups(*groups)
        for group in self._groups:
            for listener in group.listeners:
                listener.arguments.complete()
        self._commits_soon = commits_soon
        self._started: list[_Consumer] = []

    async def start(self) -> None:
        """Create the crons with their topics, and start the consumers of all groups.

        Raises the errors of a consumer's `start`, and CronExists if another application has a cron with the same name.
        """
        if crons := self._app.crons(*self._names):
            await asyncio.to_thread(self._declare, crons)
        try:
            for group in self._groups:
                await self._start(group)
        except BaseException:
            await self.stop()
            raise

    def _declare(self, crons: list[AppCron]) -> None:
        with AppCrons(self._app.name, self._app.settings) as stored:
            stored.declare(crons)

    async def _start(self, group: ListenerGroup) -> None:
        settings, options = self._app.settings, self._app.options_of(group.name)
        if self._commits_soon:
            options["persist_consumer_offset_interval"] = _SOON
        kinds = {"orderly": group.orderly, "exactly_once": group.exactly_once}
        consumer: _Consumer
        if group.is_asynchronous:
            consumer = AsyncPushConsumer(group.name, settings=settings, **options)
            for topic, expression in group.subscriptions.items():
                await consumer.subscribe(topic, expression)
            consumer.register_listener(group.callback, **kinds)
            starting = consumer.start()
        else:
            consumer = PushConsumer(group.name, settings=settings, **options)
            for topic, expression in group.subscriptions.items():
                consumer.subscribe(topic, expression)
            consumer.register_listener(group.callback, **kinds)
            starting = asyncio.to_thread(consumer.start)
        for hook in self._app.consume_message_hooks:
            consumer.register_consume_message_hook(hook)
        self._started.append(consumer)  # beforehand: if this is cancelled, the thread continues and `stop` waits for it
        await starting

    async def stop(self) -> None:
        """Wait for running listeners, and leave the groups. Raises ShutdownTimedOut."""
        consumers, self._started = self._started, []
        ends = await asyncio.gather(*map(_shutdown, consumers), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end


async def _shutdown(consumer: _Consumer) -> None:
    if isinstance(consumer, AsyncPushConsumer):
        await consumer.shutdown()
    else:
        await asyncio.to_thread(consumer.shutdown)
