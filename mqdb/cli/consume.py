"""`mqdb consume`: print the messages of a topic, as a member of a group or for oneself."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.connection import broker_of, connected
from mqdb.cli.formats import FORMATS, OutputFormat
from mqdb.cli.options import start
from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb.message import ReceivedMessage

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
    tag: Annotated[str, typer.Option("--tag", "-t", help="Only messages with one of these tags: 'A || B'.")] = "*",
    output: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="The body, or a JSON object with all fields on each line.")
    ] = OutputFormat.TEXT,
    exits: Annotated[bool, typer.Option("--exit", "-e", help="End when all that is there has been read.")] = False,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C.

    Without a group it only reads: nothing is committed, nobody else notices,
    and the messages come in about the order in which they were sent.

    \b
    [bold]Examples[/bold]
      mqdb consume orders
      mqdb consume orders --exit --format json | jq -r .tag
      mqdb consume orders --from-offset last --tag 'paid || shipped'
      mqdb consume orders --group billing --count 10
    """
    settings = start(context)
    from mqdb.selector.tags import parse_tag_expression

    parse_tag_expression(tag)
    where = _parse_offset(from_offset)
    if group is not None and isinstance(where, int):
        raise ParameterInvalid("from_offset", from_offset, "a group begins at first or last; leave --group out")
    write = FORMATS[output]

    def show(message: ReceivedMessage) -> None:
        sys.stdout.buffer.write(write(message))

    if group is None:
        _read(settings, topic, where, tag, count, exits, show)
    else:
        _consume(settings, topic, group, from_offset, tag, count, exits, show)


def _parse_offset(text: str) -> str | int:
    if text in ("first", "last"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
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


def _read(
    settings: "Settings",
    topic: str,
    where: str | int,
    tag: str,
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from mqdb.broker.admin import topic_stats
    from mqdb.cli.reader import TopicReader, tend_dispatch
    from mqdb.selector.tags import parse_tag_expression

    with connected(settings) as connection:
        route = _route(connection, topic)
        tend_dispatch(connection)
        if where == "last":
            offsets = [queue.max_offset for queue in topic_stats(connection, topic)]
        else:
            offsets = [where if isinstance(where, int) else 0] * len(route.read_queue_keys)
        broker_name = broker_of(settings).name
        reader = TopicReader(
            connection, route, broker_name, offsets[: len(route.read_queue_keys)], parse_tag_expression(tag)
        )
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
        self.is_done = threading.Event()
        self.failure: OSError | None = None

    def print_one(self, message: ReceivedMessage) -> bool:
        """Whether it is printed, and so consumed."""
        if self.is_done.is_set():
            return False
        try:
            self._show(message)
            # Consumed means that the reader of our output has it.
            sys.stdout.flush()
        except OSError as exc:
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
    tag: str,
    count: int | None,
    exits: bool,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from datetime import timedelta

    from mqdb.broker.admin import topic_stats
    from mqdb.cli.reader import tend_dispatch
    from mqdb.group import ConsumeFromWhere
    from mqdb_client import ConsumeConcurrentlyStatus, PushConsumer

    printer = _Printer(count, show)

    def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        is_printed = printer.print_one(messages[0])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if is_printed else ConsumeConcurrentlyStatus.RECONSUME_LATER

    consumer = PushConsumer(
        group,
        settings=settings,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET if from_offset == "first" else ConsumeFromWhere.LAST_OFFSET,
        # One message at a time: what is printed is consumed, and nothing else.
        consume_thread_nums=1,
        persist_consumer_offset_interval=timedelta(seconds=_COMMIT_SECONDS),
    )
    consumer.subscribe(topic, tag)
    consumer.register_listener(listen)
    with connected(settings) as connection:
        queue_nums = len(_route(connection, topic).read_queue_keys)
        tend_dispatch(connection)
        ends = {queue.queue_id: queue.max_offset for queue in topic_stats(connection, topic)[:queue_nums]}
        with consumer:
            # Never without end: a Ctrl-C in the instant before a wait does not wake it.
            while not printer.is_done.wait(_COMMIT_SECONDS):
                if exits and _has_read(connection, group, topic, ends):
                    break
    if printer.failure is not None:
        raise printer.failure


def _has_read(connection: "Connection", group: str, topic: str, ends: dict[int, int]) -> bool:
    """Whether the group has got as far as these offsets."""
    from mqdb.broker.admin import group_progress

    reached = {one.queue_id: one.next_offset for one in group_progress(connection, topic) if one.group == group}
    return all(reached.get(queue_id, 0) >= end for queue_id, end in ends.items())
