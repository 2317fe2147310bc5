"""`mqdb send`: messages from arguments, files and standard input."""

import errno
import os
import stat
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from mqdb.cli.lines import Lines, batches
from mqdb.cli.options import start
from mqdb.cli.records import (
    Fixed,
    InputFormat,
    InputInvalid,
    Outgoing,
    RecordColumns,
    from_csv,
    from_jsonl,
    from_text,
    parse_property,
    suffix_format,
    text_message,
)
from mqdb.cli.sender import Sender
from mqdb.common.delivery_schedule import schedule_properties
from mqdb.common.duration import parse_duration
from mqdb.common.message import check_message
from mqdb.errors import MqdbError, ParameterInvalid, shown

#: Number of messages that are checked and sent at a time.
_BATCH_MESSAGES = 1_000


class Source(NamedTuple):
    """An input: its name in errors, how to read it, and its size in bytes if it is a file."""

    name: str
    descriptor: int
    format: InputFormat
    size: int | None


_LATER = "Delivery later"
_COLUMNS = "Columns of CSV, fields of JSON lines"


def send(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to send to.", show_default=False)],
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help="Each text is a message. If none is given, or -, standard input is read.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read messages from this file; may be repeated."),
    ] = None,
    input_format: Annotated[
        InputFormat | None,
        typer.Option(
            "--format",
            help="Input format: each line is a message (text), each line is a JSON object (jsonl), a header and "
            "records (csv), or the whole input is one message (raw). If not given, it follows from the suffix "
            ".csv, .jsonl or .ndjson; any other input is text.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Tag of each message.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", "-k", help="Key of each message; may be repeated.")] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of each message; may be repeated."),
    ] = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="Messages with the same sharding key go to one queue, in order.")
    ] = None,
    delay_level: Annotated[
        int,
        typer.Option(
            metavar="LEVEL",
            rich_help_panel=_LATER,
            help="Deliver after the delay of this level; mqdb delay list shows the broker's levels.",
        ),
    ] = 0,
    delay: Annotated[
        str | None,
        typer.Option(metavar="TIME", rich_help_panel=_LATER, help="Deliver after this delay: 90s, 15m, 2h, 7d."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", rich_help_panel=_LATER, help="Deliver at this time: 2026-07-14T09:30, or with +02:00."
        ),
    ] = None,
    tag_column: Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=_COLUMNS, help="The tag.")] = None,
    key_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", rich_help_panel=_COLUMNS, help="Column with a key; may be repeated."),
    ] = None,
    property_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", rich_help_panel=_COLUMNS, help="Column with a property; may be repeated."),
    ] = None,
    sharding_column: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=_COLUMNS, help="Column with the sharding key.")
    ] = None,
    body_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_COLUMNS,
            help="Column with the body; if not given, the body is the whole record as JSON.",
        ),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", rich_help_panel=_COLUMNS, help="A value that counts as missing, like an empty value."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Send messages to a topic, and print their ids.

    Each argument is a message; without arguments, each line of standard input or of a file is a message. Empty lines
    are skipped. Many messages are sent in batches, each of which is stored completely or not at all. If the DSN lists
    several brokers, messages go to all brokers that have the topic; a broker that is down is skipped.

    \b
    [bold]Examples[/bold]
      mqdb send orders 'one' 'two' --tag new --key order-17 --property origin=shop
      tail -f app.log | mqdb send logs
      mqdb send orders -f orders.jsonl --tag-column status --key-column id --body-column payload
      mqdb send flights -f flights.csv --tag-column carrier --key-column tailnum --property-column origin
                --sharding-column tailnum --null NA
      mqdb send reminders 'pay order-17' --delay 90s
    """
    settings = start(context)
    properties, schedule = dict(map(parse_property, prop or ())), _parse_schedule(delay_level, delay, deliver_at)
    fixed = Fixed(topic, tag, tuple(key or ()), properties, sharding_key, schedule)
    columns = RecordColumns(
        tag_column, tuple(key_column or ()), tuple(property_column or ()), sharding_column, body_column
    )
    nulls = frozenset(null or ())
    with ExitStack() as resources:
        if text and text != ["-"]:
            if file:
                raise ParameterInvalid("file", str(file[0]), "give texts or files, but not both")
            _check_no_input_options(input_format, columns, nulls)
            messages = [text_message(os.fsencode(each), fixed) for each in text]
            for message in messages:
                check_message(message.message)
            sender = resources.enter_context(Sender(settings, topic, shows_ids=not quiet))
            sender.send(messages)
        else:
            sources = [_open(path, input_format, resources) for path in file or (None,)]
            _check_columns(columns, nulls, sources)
            is_watched = not file and sys.stdin.isatty()
            if is_watched and not quiet:
                print("mqdb: each line is a message; Ctrl-D ends", file=sys.stderr)
            sender = resources.enter_context(Sender(settings, topic, shows_ids=is_watched and not quiet))
            with sender.telling_what_was_sent():
                _send_sources(sender, sources, fixed, columns, nulls, shows_progress=not (quiet or is_watched))
    if not quiet:
        sender.summarize()


def _open(path: Path | None, wished: InputFormat | None, resources: ExitStack) -> Source:
    if path is None or str(path) == "-":
        return _source("standard input", sys.stdin.fileno(), wished or InputFormat.TEXT)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        resources.callback(os.close, descriptor)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as exc:
        raise ParameterInvalid("file", str(path), exc.strerror or str(exc)) from exc
    return _source(str(path), descriptor, wished or suffix_format(path.name))


def _source(name: str, descriptor: int, input_format: InputFormat) -> Source:
    status = os.fstat(descriptor)
    return Source(name, descriptor, input_format, status.st_size if stat.S_ISREG(status.st_mode) else None)


def _check_no_input_options(input_format: InputFormat | None, columns: RecordColumns, nulls: frozenset[str]) -> None:
    given = {
        "format": None if input_format is None else input_format.value,
        "tag_column": columns.tag,
        "key_column": next(iter(columns.keys), None),
        "property_column": next(iter(columns.properties), None),
        "sharding_column": columns.sharding_key,
        "body_column": columns.body,
        "null": next(iter(nulls), None),
    }
    for name, value in given.items():
        if value is not None:
            raise ParameterInvalid(
                name, value, "is for files and standard input; a text argument is always the whole body"
            )


def _check_columns(columns: RecordColumns, nulls: frozenset[str], sources: Sequence[Source]) -> None:
    for source in sources:
        if (columns.names or nulls) and source.format not in (InputFormat.CSV, InputFormat.JSONL):
            reason = f"{source.name} is read as {source.format}, which has no columns; add --format csv or jsonl"
            name, value = ("column", columns.names[0]) if columns.names else ("null", min(nulls))
            raise ParameterInvalid(name, value, reason)


def _send_sources(
    sender: Sender,
    sources: Sequence[Source],
    fixed: Fixed,
    columns: RecordColumns,
    nulls: frozenset[str],
    *,
    shows_progress: bool,
) -> None:
    from mqdb.cli.console import progress, standard_error

    console = standard_error()
    console.quiet = not shows_progress
    with progress(console) as bars:
        for source in sources:
            lines = Lines(source.descriptor, is_file=source.size is not None)
            bar = bars.add_task(source.name, total=source.size, note="")
            outgoing = _messages(source, lines, fixed, columns, nulls)
            for batch in batches(_checked(outgoing, source.name), lines.has_more_at_hand, _BATCH_MESSAGES):
                sender.send(batch)
                bars.update(bar, completed=lines.read_bytes, note=f"{sender.sent:,} messages")


def _messages(
    source: Source, lines: Lines, fixed: Fixed, columns: RecordColumns, nulls: frozenset[str]
) -> Iterator[Outgoing]:
    match source.format:
        case InputFormat.TEXT:
            return from_text(lines, fixed)
        case InputFormat.JSONL:
            return _telling_what_is_missing(from_jsonl(lines, fixed, columns, nulls, source.name), source.name)
        case InputFormat.CSV:
            return from_csv(lines, fixed, columns, nulls, source.name)
        case InputFormat.RAW:
            return iter([text_message(lines.rest(), fixed, 1)])


def _telling_what_is_missing(outgoing: Generator[Outgoing, None, list[str]], source: str) -> Iterator[Outgoing]:
    """Pass all messages on; at the end, print the columns that no record had, which may be misspelled."""
    for name in (yield from outgoing):
        print(f"mqdb: no record of {source} has {shown(name)}", file=sys.stderr)


def _checked(outgoing: Iterator[Outgoing], source: str) -> Iterator[Outgoing]:
    """Pass all messages on; raise InputInvalid with the line of a message that no broker would store."""
    for each in outgoing:
        try:
            check_message(each.message)
        except MqdbError as exc:
            raise InputInvalid(source, each.line, str(exc)) from exc
        yield each


def _parse_schedule(delay_level: int, delay: str | None, deliver_at: str | None) -> Mapping[str, str]:
    """The properties that schedule the messages. Raises ParameterInvalid, ScheduleInvalid."""
    return schedule_properties(
        delay_level,
        None if delay is None else _parse_delay(delay),
        None if deliver_at is None else _parse_moment(deliver_at),
    )


def _parse_delay(text: str) -> timedelta:
    delay = parse_duration(text)
    if delay is None:
        raise ParameterInvalid("delay", text, "must be a number and a unit, such as 500ms, 90s, 15m, 2h or 7d")
    if delay == timedelta.max:
        raise ParameterInvalid("delay", text, "is too long")
    return delay


def _parse_moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ParameterInvalid(
            "deliver_at", text, "must be a time such as 2026-07-14T09:30 or 2026-07-14T09:30+02:00"
        ) from error
