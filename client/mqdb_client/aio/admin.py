"""The administrator for asyncio, with the names, options and errors of `Admin`.

One line here wraps each method of Admin: the method runs in a thread, and mypy sees its parameters and its result.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from mqdb.common.received_message import ReceivedMessage
from mqdb.settings import Settings
from mqdb_client.admin.acl import Acl
from mqdb_client.admin.admin import Admin, BrokerAdmin
from mqdb_client.admin.answers import Answers, noting
from mqdb_client.admin.consumers import Consumers
from mqdb_client.admin.crons import Crons
from mqdb_client.admin.dead_letters import DeadLetters
from mqdb_client.admin.delays import Delays
from mqdb_client.admin.doctor import Doctor
from mqdb_client.admin.groups import Groups
from mqdb_client.admin.messages import Messages
from mqdb_client.admin.offsets import Offsets
from mqdb_client.admin.operations import Operations
from mqdb_client.admin.retention import Retention
from mqdb_client.admin.selectors import Selectors
from mqdb_client.admin.timers import Timers
from mqdb_client.admin.topic_reader import TopicReader
from mqdb_client.admin.topics import Topics
from mqdb_client.admin.transactions import Transactions
from mqdb_client.aio.in_threads import Entered, Wrapper, in_thread, iterated

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class AsyncTopicReader:
    """A TopicReader for `async for`. Iteration ends when no message is left."""

    def __init__(self, entered: "Entered[TopicReader]") -> None:
        self._entered = entered
        self._below = entered.value

    @property
    def offsets(self) -> list[int]:
        """The next offset to read in each queue."""
        return self._below.offsets

    async def read(self) -> list[ReceivedMessage]:
        """Read the next messages. See `TopicReader.read`. If the task is cancelled, these messages are skipped."""
        return await self._entered.run(self._below.read)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while messages := await self.read():
            for message in messages:
                yield message

    async def dispatch(self) -> None:
        """Dispatch messages that were sent since the last read. See `TopicReader.dispatch`."""
        await self._entered.run(self._below.dispatch)


def _reading(
    method: Callable[Concatenate[S, P], AbstractContextManager[TopicReader]],
) -> Callable[Concatenate[Wrapper[S], P], AbstractAsyncContextManager[AsyncTopicReader]]:
    """Turn a method for a `with` statement into a method for `async with`."""

    @wraps(method)
    @asynccontextmanager
    async def call(self: Wrapper[S], /, *arguments: P.args, **options: P.kwargs) -> AsyncIterator[AsyncTopicReader]:
        async with Entered(method(self._below, *arguments, **options)) as entered:
            yield AsyncTopicReader(entered)

    return call


class AsyncAcl(Wrapper[Acl]):
    """The methods of Acl."""

    grant = in_thread(Acl.grant)
    revoke = in_thread(Acl.revoke)
    set_secret = in_thread(Acl.set_secret)
    apply = in_thread(Acl.apply)
    allows = in_thread(Acl.allows)
    held = in_thread(Acl.held)
    list = in_thread(Acl.list)


class AsyncTopics(Wrapper[Topics]):
    """The methods of Topics."""

    create = in_thread(Topics.create)
    show = in_thread(Topics.show)
    update = in_thread(Topics.update)
    unread = in_thread(Topics.unread)
    uses = in_thread(Topics.uses)
    delete = in_thread(Topics.delete)
    list = in_thread(Topics.list)


class AsyncGroups(Wrapper[Groups]):
    """The methods of Groups."""

    show = in_thread(Groups.show)
    topics = in_thread(Groups.topics)
    retries = in_thread(Groups.retries)
    update = in_thread(Groups.update)
    delete = in_thread(Groups.delete)
    list = in_thread(Groups.list)


class AsyncConsumers(Wrapper[Consumers]):
    """The methods of Consumers."""

    status = in_thread(Consumers.status)
    consume = in_thread(Consumers.consume)
    list = in_thread(Consumers.list)


class AsyncOffsets(Wrapper[Offsets]):
    """The methods of Offsets."""

    show = in_thread(Offsets.show)
    committed = in_thread(Offsets.committed)
    reset = in_thread(Offsets.reset)
    clone = in_thread(Offsets.clone)


class AsyncMessages(Wrapper[Messages]):
    """The methods of Messages."""

    show = in_thread(Messages.show)
    trace = in_thread(Messages.trace)
    find = in_thread(Messages.find)
    reading = _reading(Messages.reading)
    latest = in_thread(Messages.latest)
    send = in_thread(Messages.send)
    end_of = in_thread(Messages.end_of)


class AsyncOperations(Wrapper[Operations]):
    """The methods of Operations."""

    list = in_thread(Operations.list)


class AsyncDeadLetters(Wrapper[DeadLetters]):
    """The methods of DeadLetters."""

    groups = in_thread(DeadLetters.groups)
    causes = in_thread(DeadLetters.causes)
    by_hour = in_thread(DeadLetters.by_hour)
    count = in_thread(DeadLetters.count)
    show = in_thread(DeadLetters.show)
    redriven = in_thread(DeadLetters.redriven)
    read = iterated(DeadLetters.read)
    choose = in_thread(DeadLetters.choose)
    redrive = in_thread(DeadLetters.redrive)
    redrive_batch = in_thread(DeadLetters.redrive_batch)
    list = in_thread(DeadLetters.list)


class AsyncTimers(Wrapper[Timers]):
    """The methods of Timers."""

    recall = in_thread(Timers.recall)
    list = in_thread(Timers.list)


class AsyncDelays(Wrapper[Delays]):
    """The methods of Delays."""

    find_lost = in_thread(Delays.find_lost)
    skip = in_thread(Delays.skip)
    list = in_thread(Delays.list)


class AsyncCrons(Wrapper[Crons]):
    """The methods of Crons."""

    add = in_thread(Crons.add)
    declare = in_thread(Crons.declare)
    next_times = in_thread(Crons.next_times)
    pause = in_thread(Crons.pause)
    resume = in_thread(Crons.resume)
    remove = in_thread(Crons.remove)
    list = in_thread(Crons.list)


class AsyncTransactions(Wrapper[Transactions]):
    """The methods of Transactions."""

    resolve = in_thread(Transactions.resolve)
    list = in_thread(Transactions.list)


class AsyncSelectors(Wrapper[Selectors]):
    """The methods of Selectors."""

    try_on = in_thread(Selectors.try_on)


class AsyncRetention(Wrapper[Retention]):
    """The methods of Retention."""

    log = in_thread(Retention.log)
    segments = in_thread(Retention.segments)
    sizes = in_thread(Retention.sizes)
    oldest_seconds = in_thread(Retention.oldest_seconds)


class AsyncDoctor(Wrapper[Doctor]):
    """The methods of Doctor."""

    examine = in_thread(Doctor.examine)
    checks = staticmethod(Doctor.checks)
    exit_code = staticmethod(Doctor.exit_code)


class AsyncBrokerAdmin(Wrapper[BrokerAdmin]):
    """Shows and changes one broker, by subject. See `BrokerAdmin`."""

    def __init__(self, below: BrokerAdmin) -> None:
        super().__init__(below)
        self.acl = AsyncAcl(below.acl)
        self.topics = AsyncTopics(below.topics)
        self.groups = AsyncGroups(below.groups)
        self.consumers = AsyncConsumers(below.consumers)
        self.offsets = AsyncOffsets(below.offsets)
        self.messages = AsyncMessages(below.messages)
        self.operations = AsyncOperations(below.operations)
        self.dead_letters = AsyncDeadLetters(below.dead_letters)
        self.timers = AsyncTimers(below.timers)
        self.delays = AsyncDelays(below.delays)
        self.crons = AsyncCrons(below.crons)
        self.transactions = AsyncTransactions(below.transactions)
        self.selectors = AsyncSelectors(below.selectors)
        self.retention = AsyncRetention(below.retention)
        self.doctor = AsyncDoctor(below.doctor)

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._below.name

    check = in_thread(BrokerAdmin.check)
    versions = in_thread(BrokerAdmin.versions)


class AsyncAdmin(AsyncBrokerAdmin):
    """Manages the brokers named in the settings. All methods that query a broker must be awaited.

        async with AsyncAdmin() as admin:
            await admin.topics.create("orders", queues=16)
            async with admin.messages.reading("orders") as reader:
                async for message in reader:
                    ...

    If the task that waits for a method is cancelled, the method still runs to its end in its thread. Everything else
    works as in `Admin`.
    """

    def __init__(self, dsn: str | None = None, settings: Settings | None = None, *, read_only: bool = False) -> None:
        """Create an AsyncAdmin without connecting. See `Admin`."""
        self._admin = Admin(dsn, settings, read_only=read_only)
        super().__init__(self._admin)
        is_single = self._admin.brokers == (self._admin,)
        self.brokers: tuple[AsyncBrokerAdmin, ...] = (
            (self,) if is_single else tuple(AsyncBrokerAdmin(each) for each in self._admin.brokers)
        )
        """The individual brokers, in the order of the settings."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. The next call of a method reconnects."""
        await asyncio.to_thread(self._admin.close)

    def on(self, name: str) -> AsyncBrokerAdmin:
        """The broker with this name. Raises ParameterInvalid if no broker has this name."""
        return self.chosen([name])[0]

    async def on_each(
        self, work: Callable[[AsyncBrokerAdmin], Awaitable[T]], names: Sequence[str] | None = None
    ) -> Answers[T]:
        """Run `work` on all brokers, or only on the brokers in `names`, in order. See `Admin.on_each`."""
        answers: Answers[T] = Answers()
        for broker in self.chosen(names):
            with noting(answers, broker):
                answers.results[broker.name] = await work(broker)
        return answers

    def chosen(self, names: Sequence[str] | None = None) -> tuple[AsyncBrokerAdmin, ...]:
        """The brokers with these names, in the order of the settings. See `Admin.chosen`."""
        chosen = self._admin.chosen(names)
        return tuple(each for each in self.brokers if each._below in chosen)
