"""`mqdb consume`: print the messages of a topic, as a member of a group or without a group."""

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.formats import FORMATS, OutputFormat
from mqdb.cli.offset_target import parse_offset
from mqdb.cli.options import start
from mqdb.common.printable import printable
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import MqdbError, ParameterInvalid, TopicNotFound
from mqdb.process.signals import STOP_SIGNALS, deferred

if TYPE_CHECKING:
    from mqdb.settings import Settings
    from mqdb_client import Admin, BrokerAdmin, MessageSelector

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.2
#: Interval at which a group commits, and at which the command checks whether it can end.
_COMMIT_SECONDS = 0.2
#: If the command is killed, a message that was shown but not yet acknowledged is delivered again.
_POPPED_AT_ONCE = 32


def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Join this group: share its messages with the other members, and commit its offsets."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="Exit after this many messages.")] = None,
    from_offset: Annotated[
        str,
        typer.Option(
            "--from-offset",
            "-o",
            metavar="first|last|N",
            help="Where to start in each queue; with a group, used only if the group is new to the topic.",
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
            help="Only messages that match this SQL92 expression; see [bold]mqdb selector explain[/bold].",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        OutputFormat,
        typer.Option("--format", "-f", help="Print the body, or a JSON object with all fields, one on each line."),
    ] = OutputFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    exits: Annotated[
        bool, typer.Option("--exit", "-e", help="Exit when all existing messages have been read.")
    ] = False,
    pops: Annotated[
        bool, typer.Option("--pop", help="With a group that pops: acknowledge each message, without owning any queue.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Without a group: the broker to read, if there are several.", show_default=False
        ),
    ] = None,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Without a group, the command only reads: it commits nothing and does not affect consumers, and messages arrive
    roughly in the order in which they were sent. Without a group, it reads one broker; a group reads all brokers in the
    DSN.

    The JSON object of a message has the fields topic, broker_name, queue_id, queue_offset, log_pos, message_id, tag,
    keys, properties, born_time, store_time, born_host, reconsume_times, flag and sys_flag; its bytes are in body, or as
    base64 in body_base64 if they are not UTF-8.

    \b
    [bold]Examples[/bold]
      mqdb consume orders
      mqdb consume orders --exit --format json | jq -r .tag
      mqdb consume orders --from-offset last --tag 'paid || shipped'
      mqdb consume orders --sql "TAGS IN ('paid', 'shipped') AND price > 10.5"
      mqdb consume orders --group billing --count 10
      mqdb consume orders --group workers --pop --exit
      mqdb consume orders --broker broker-b
    """
    settings = start(context)
    selector = _selector_of(tag, sql)
    where = _parse_offset(from_offset)
    if group is not None and isinstance(where, int):
        raise ParameterInvalid("from_offset", from_offset, "a group starts at first or last; leave --group out")
    if group is not None and broker is not None:
        raise ParameterInvalid("broker", broker, "a group reads from all brokers; leave --broker or --group out")
    if pops and group is None:
        raise ParameterInvalid("pop", pops, "only members of a group pop messages; name a group with --group")
    write = FORMATS[OutputFormat.JSON if as_json else output]

    is_terminal = sys.stdout.isatty()

    def bytes_of(message: ReceivedMessage) -> bytes:
        shown = write(message)
        return printable(shown.decode(errors="backslashreplace")).encode() if is_terminal else shown

    if group is None:

        def show(message: ReceivedMessage) -> None:
            sys.stdout.buffer.write(bytes_of(message))

        from mqdb_client import Admin

        with Admin(settings=settings) as admin:
            _read(_chosen_broker(admin, broker, topic), topic, where, selector, count, exits, show)
    else:

        def show_at_once(message: ReceivedMessage) -> None:
            _write_unbuffered(bytes_of(message))

        consume_as_member = _pop if pops else _consume
        consume_as_member(settings, topic, group, from_offset, selector, count, exits, show_at_once)


def _write_unbuffered(output: bytes) -> None:
    """Write past the buffer of standard output.

    If a thread hangs in a write to the buffer, it holds the buffer's lock, and Python aborts at exit because it cannot
    flush.
    """
    raw = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
    rest = memoryview(output)
    while rest:
        written = raw.write(rest)
        if written is None:  # standard output is non-blocking
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[written:]


def _selector_of(tag: str | None, sql: str | None) -> "MessageSelector":
    """Raise TagExpressionInvalid, SelectorSyntaxError, or ParameterInvalid if both are given."""
    from mqdb_client import MessageSelector

    if sql is None:
        return MessageSelector.by_tag(tag)
    if tag is not None:
        raise ParameterInvalid(
            "tag", tag, "filter by --tag or by --sql, not both; in SQL92 the tag is the property TAGS"
        )
    return MessageSelector.by_sql(sql)


def _parse_offset(text: str) -> str | int:
    if text in ("first", "last"):
        return text
    if (offset := parse_offset(text)) is not None:
        return offset
    raise ParameterInvalid("from_offset", text, "must be first, last or the number of an offset")


# -- without a group ------------------------------------------------------------------------------


def _chosen_broker(admin: "Admin", name: str | None, topic: str) -> "BrokerAdmin":
    brokers = admin.chosen(name if name is None else [name])
    if len(brokers) > 1:
        names = ", ".join(broker.name for broker in brokers)
        reason = f"there are several brokers, {names}: name one with --broker, or read from all with --group"
        raise ParameterInvalid("topic", topic, reason)
    return brokers[0]


def _read(
    broker: "BrokerAdmin",
    topic: str,
    where: str | int,
    selector: "MessageSelector",
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    start = where if isinstance(where, int) else None if where == "last" else 0
    with broker.messages.reading(topic, start, selector) as reader:
        logger.info("reading", extra={"topic": topic, "offsets": reader.offsets})
        for number, message in enumerate(_arriving(reader.read, reader.dispatch, exits), 1):
            show(message)
            if number == count:
                break


def _arriving(
    read: Callable[[], list[ReceivedMessage]], tend: Callable[[], None], exits: bool
) -> Iterator[ReceivedMessage]:
    """Yield the existing messages, then new ones; with `exits` only the existing messages.

    Flushes standard output before it waits.
    """
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
    """The listener: prints up to `count` messages, one thread at a time, and leaves all other messages to the group."""

    def __init__(self, count: int | None, show: Callable[[ReceivedMessage], None]) -> None:
        self._left = count
        self._show = show
        self._printing = threading.Lock()
        self.is_done = threading.Event()
        self.failure: Exception | None = None

    def print_one(self, message: ReceivedMessage) -> bool:
        """Return whether the message was printed, and so is consumed."""
        with self._printing:
            return not self.is_done.is_set() and self._print(message)

    def _print(self, message: ReceivedMessage) -> bool:
        try:
            # A message is consumed once the reader of our output has it.
            self._show(message)
        except (OSError, MqdbError) as exc:
            # The reader of our output is gone, or the body cannot be decompressed: trying again helps in neither case.
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
    selector: "MessageSelector",
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from datetime import timedelta

    from mqdb.common.group import ConsumeFromWhere
    from mqdb_client import Admin, ConsumeOrderlyStatus, PushConsumer

    printer = _Printer(count, show)

    def listen(messages: list[ReceivedMessage]) -> ConsumeOrderlyStatus:
        # Orderly, so that a message that is not printed stays in its place; a concurrent listener would send it back,
        # and it would come late.
        is_printed = printer.print_one(messages[0])
        return ConsumeOrderlyStatus.SUCCESS if is_printed else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    consumer = PushConsumer(
        group,
        settings=settings,
        consume_from_where=ConsumeFromWhere(f"{from_offset.upper()}_OFFSET"),
        persist_consumer_offset_interval=timedelta(seconds=_COMMIT_SECONDS),
    )
    consumer.subscribe(topic, selector)
    consumer.register_listener(listen, orderly=True)
    with Admin(settings=settings) as admin:
        ends = admin.on_each(lambda one: one.messages.end_of(topic)).without(TopicNotFound, ParameterInvalid)
        if not ends.results:
            ends.check()
        try:
            # A half-started consumer may have printed messages, and has not left its group.
            with deferred(*STOP_SIGNALS):
                consumer.start()
            # Always with a timeout: a Ctrl-C just before a wait does not wake it.
            while not printer.is_done.wait(_COMMIT_SECONDS):
                if exits and all(_has_reached(admin, name, group, topic, end) for name, end in ends.results.items()):
                    break
        finally:
            consumer.shutdown()
    if printer.failure is not None:
        raise printer.failure
    if exits:
        ends.check()


def _pop(
    settings: "Settings",
    topic: str,
    group: str,
    from_offset: str,
    selector: "MessageSelector",
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from datetime import timedelta

    from mqdb.common.group import ConsumeFromWhere
    from mqdb_client import SimpleConsumer

    start = ConsumeFromWhere(f"{from_offset.upper()}_OFFSET")
    consumer = SimpleConsumer(group, settings=settings, consume_from_where=start)
    consumer.subscribe(topic, selector)
    # As short as with a listener: a Ctrl-C just before a wait does not wake it.
    wait = timedelta(seconds=_COMMIT_SECONDS)
    left = count
    with consumer:
        while left != 0:
            messages = consumer.receive(_POPPED_AT_ONCE if left is None else min(left, _POPPED_AT_ONCE), timeout=wait)
            if exits and not messages:
                break
            for message in messages:
                show(message)
            consumer.ack(messages)
            left = None if left is None else left - len(messages)


def _has_reached(admin: "Admin", broker_name: str, group: str, topic: str, end: dict[int, int]) -> bool:
    """Whether the group has read each queue up to these offsets."""
    reached = admin.on(broker_name).offsets.committed(group, topic)
    return all(reached.get(queue_id, 0) >= offset for queue_id, offset in end.items())
