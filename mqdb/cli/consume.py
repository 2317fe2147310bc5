"""`mqdb consume`: print the messages of a topic, as a member of a group or for oneself."""

import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from mqdb.cli.connection import ask_each, chosen_brokers, connected_to
from mqdb.cli.formats import FORMATS, OutputFormat
from mqdb.cli.offset_target import parse_offset
from mqdb.cli.options import start
from mqdb.errors import MqdbError, ParameterInvalid, TopicNotFound
from mqdb.message import ReceivedMessage
from mqdb.printable import printable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from mqdb.dsn import BrokerDsn
    from mqdb.selector.subscription import MessageFilter
    from mqdb.settings import Settings
    from mqdb.store.topics import TopicRoute

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.2
#: How often a group commits, and how often the end is looked for.
_COMMIT_SECONDS = 0.2


def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Be a member of this group: share its messages, commit its offsets."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after so many messages.")] = None,
    from_offset: Annotated[
        str,
        typer.Option(
            "--from-offset",
            "-o",
            metavar="first|last|N",
            help="Where to begin in each queue; a group only where it is new to the topic.",
        ),
    ] = "first",
    tag: Annotated[
        str | None,
        typer.Option("--tag", "-t", help="Only messages with one of these tags: 'A || B'.", show_default=False),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="EXPRESSION",
            help="Only messages that this SQL92 lets pass; see [bold]mqdb selector explain[/bold].",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="The body, or a JSON object with all fields on each line.")
    ] = OutputFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    exits: Annotated[bool, typer.Option("--exit", "-e", help="End when all that is there has been read.")] = False,
    broker: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Without a group: which of several brokers to read.", show_default=False),
    ] = None,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C.

    Without a group it only reads: nothing is committed, nobody else notices,
    and the messages come in about the order in which they were sent. That is
    of one broker; a group reads from all that the DSN lists.

    The JSON object of a message has topic, broker_name, queue_id, queue_offset,
    log_pos, message_id, tag, keys, properties, born_time, store_time, born_host,
    reconsume_times, flag and sys_flag, and the bytes as body, or in base64 as
    body_base64 where they are not UTF-8.

    \b
    [bold]Examples[/bold]
      mqdb consume orders
      mqdb consume orders --exit --format json | jq -r .tag
      mqdb consume orders --from-offset last --tag 'paid || shipped'
      mqdb consume orders --sql "TAGS IN ('paid', 'shipped') AND price > 10.5"
      mqdb consume orders --group billing --count 10
      mqdb consume orders --broker broker-b
    """
    settings = start(context)
    message_filter = _filter_of(tag, sql)
    where = _parse_offset(from_offset)
    if group is not None and isinstance(where, int):
        raise ParameterInvalid("from_offset", from_offset, "a group begins at first or last; leave --group out")
    if group is not None and broker is not None:
        raise ParameterInvalid("broker", broker, "a group reads from all brokers; leave --broker or --group out")
    write = FORMATS[OutputFormat.JSON if as_json else output]

    is_terminal = sys.stdout.isatty()

    def bytes_of(message: ReceivedMessage) -> bytes:
        shown = write(message)
        return printable(shown.decode(errors="backslashreplace")).encode() if is_terminal else shown

    if group is None:

        def show(message: ReceivedMessage) -> None:
            sys.stdout.buffer.write(bytes_of(message))

        _read(_chosen_broker(settings, broker, topic), topic, where, message_filter, count, exits, show)
    else:

        def show_at_once(message: ReceivedMessage) -> None:
            _write_unbuffered(bytes_of(message))

        _consume(settings, topic, group, from_offset, message_filter, count, exits, show_at_once)


def _write_unbuffered(output: bytes) -> None:
    """Write past the buffer of standard output.

    A thread that hangs in a write to the buffer holds its lock, and Python aborts when it cannot flush at the end.
    """
    raw = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
    rest = memoryview(output)
    while rest:
        written = raw.write(rest)
        if written is None:  # standard output does not block
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[written:]


def _filter_of(tag: str | None, sql: str | None) -> "MessageFilter":
    """Raises TagExpressionInvalid, SelectorSyntaxError, and ParameterInvalid where both are given."""
    if sql is None:
        from mqdb.selector.tags import parse_tag_expression

        return parse_tag_expression(tag)
    if tag is not None:
        raise ParameterInvalid("tag", tag, "a filter is by --tag or by --sql; in SQL92 the tag is the property TAGS")
    from mqdb.selector import compile_selector

    return compile_selector(sql)


def _parse_offset(text: str) -> str | int:
    if text in ("first", "last"):
        return text
    if (offset := parse_offset(text)) is not None:
        return offset
    raise ParameterInvalid("from_offset", text, "write first, last or the number of an offset")


def _route(connection: "Connection", topic: str) -> "TopicRoute":
    from mqdb.broker.route import find_topic
    from mqdb.topic import check_topic_name

    check_topic_name(topic)
    route = find_topic(connection, topic)
    if route is None:
        raise TopicNotFound(topic)
    if not route.read_queue_keys:
        raise ParameterInvalid("topic", topic, f"its perm {int(route.config.perm)} does not let anybody read it")
    return route


# -- without a group ------------------------------------------------------------------------------


def _chosen_broker(settings: "Settings", name: str | None, topic: str) -> "BrokerDsn":
    brokers = chosen_brokers(settings, name if name is None else [name])
    if len(brokers) > 1:
        names = ", ".join(broker.name for broker in brokers)
        reason = f"there are several brokers, {names}: name one with --broker, or read from all with --group"
        raise ParameterInvalid("topic", topic, reason)
    return brokers[0]


def _read(
    broker: "BrokerDsn",
    topic: str,
    where: str | int,
    message_filter: "MessageFilter",
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from mqdb.broker.admin import topic_stats
    from mqdb.broker.filters import check_filters
    from mqdb.cli.reader import TopicReader, tend_dispatch

    with connected_to(broker) as connection:
        route = _route(connection, topic)
        check_filters(connection, {message_filter.expression_type})
        tend_dispatch(connection)
        if where == "last":
            offsets = [queue.max_offset for queue in topic_stats(connection, topic)]
        else:
            offsets = [where if isinstance(where, int) else 0] * len(route.read_queue_keys)
        reader = TopicReader(connection, route, broker.name, offsets[: len(route.read_queue_keys)], message_filter)
        logger.info("reading", extra={"topic": topic, "offsets": offsets})
        for number, message in enumerate(_arriving(reader.read, lambda: tend_dispatch(connection), exits), 1):
            show(message)
            if number == count:
                break


def _arriving(
    read: Callable[[], list[ReceivedMessage]], tend: Callable[[], None], exits: bool
) -> Iterator[ReceivedMessage]:
    """What there is, then what comes; with `exits` only what there is. Flushes before it waits."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        messages = read()
        yield from messages
        if messages:
            pause = _FIRST_PAUSE_SECONDS
            continue
        if exits:
            return
        sys.stdout.flush()
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        tend()


# -- with a group ---------------------------------------------------------------------------------


class _Printer:
    """The listener: prints up to `count` messages, one thread at a time, and leaves all others to the group."""

    def __init__(self, count: int | None, show: Callable[[ReceivedMessage], None]) -> None:
        self._left = count
        self._show = show
        self._printing = threading.Lock()
        self.is_done = threading.Event()
        self.failure: Exception | None = None

    def print_one(self, message: ReceivedMessage) -> bool:
        """Whether it is printed, and so consumed."""
        with self._printing:
            return not self.is_done.is_set() and self._print(message)

    def _print(self, message: ReceivedMessage) -> bool:
        try:
            # Consumed means that the reader of our output has it.
            self._show(message)
        except (OSError, MqdbError) as exc:
            # Nobody reads any more, or the body cannot be decompressed: neither is mended by trying again.
            self.failure = exc
            self.is_done.set()
            return False
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.is_done.set()
        return True


def _consume(
    settings: "Settings",
    topic: str,
    group: str,
    from_offset: str,
    message_filter: "MessageFilter",
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from datetime import timedelta

    from mqdb.group import ConsumeFromWhere
    from mqdb_client import ConsumeOrderlyStatus, MessageSelector, PushConsumer

    printer = _Printer(count, show)

    def listen(messages: list[ReceivedMessage]) -> ConsumeOrderlyStatus:
        # In order, so that what is not printed stays where it is; what fails concurrently is sent back, and comes late.
        is_printed = printer.print_one(messages[0])
        return ConsumeOrderlyStatus.SUCCESS if is_printed else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    consumer = PushConsumer(
        group,
        settings=settings,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET if from_offset == "first" else ConsumeFromWhere.LAST_OFFSET,
        persist_consumer_offset_interval=timedelta(seconds=_COMMIT_SECONDS),
    )
    consumer.subscribe(topic, MessageSelector(message_filter))
    consumer.register_listener(listen, orderly=True)
    with ExitStack() as connections:

        def end_on(broker: "BrokerDsn") -> _End:
            return _end_of(connections.enter_context(connected_to(broker)), topic)

        ends = ask_each(chosen_brokers(settings, None), end_on).without(TopicNotFound, ParameterInvalid)
        if not ends.results:
            ends.check()
        try:
            with _uninterrupted():
                consumer.start()
            # Never without end: a Ctrl-C in the instant before a wait does not wake it.
            while not printer.is_done.wait(_COMMIT_SECONDS):
                if exits and all(end.is_reached_by(group) for end in ends.results.values()):
                    break
        finally:
            consumer.shutdown()
    if printer.failure is not None:
        raise printer.failure
    if exits:
        ends.check()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait: a consumer that is half started has printed perhaps, and could not leave its group."""
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _frame: heard.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])


class _End(NamedTuple):
    """Where a topic ended on one broker when somebody looked: the max offsets of the queues that can be read."""

    connection: "Connection"
    offsets: dict[int, int]
    """By the keys of the queues."""

    def is_reached_by(self, group: str) -> bool:
        """Whether the group has got as far."""
        from mqdb.broker.offsets import committed_offsets

        reached = committed_offsets(self.connection, group, list(self.offsets))
        return all(reached.get(queue_key, 0) >= offset for queue_key, offset in self.offsets.items())


def _end_of(connection: "Connection", topic: str) -> _End:
    """Raises TopicNotFound, and ParameterInvalid for a topic that nobody may read."""
    from mqdb.broker.admin import topic_stats
    from mqdb.cli.reader import tend_dispatch

    queue_keys = _route(connection, topic).read_queue_keys
    tend_dispatch(connection)
    stats = topic_stats(connection, topic)
    return _End(connection, {key: queue.max_offset for key, queue in zip(queue_keys, stats, strict=False)})
