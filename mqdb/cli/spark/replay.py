"""`mqdb spark replay`: sends messages from the archive, or from a topic, to a topic."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mqdb.cli.options import start
from mqdb.cli.rows import Json, Row, print_rows
from mqdb.cli.spark.running import DEFAULT_CORES, Cores, OneBroker, bar, chosen_broker, spark_session
from mqdb.cli.times import parse_time
from mqdb.errors import ParameterInvalid


def _chosen(*names: str, metavar: str | None = None, help: str) -> Any:
    panel = "Messages (a message has to meet all of these options)"
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, rich_help_panel=panel)


def replay(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The topic to read.", show_default=False)],
    topic: Annotated[str, typer.Argument(metavar="TO", help="The topic to write.", show_default=False)],
    write_id: Annotated[
        str,
        typer.Option("--write-id", metavar="ID", help="A name that you choose for this replay.", show_default=False),
    ],
    archived: Annotated[bool, _chosen("--archive", help="Read from the archive instead of the broker's log.")] = False,
    since: Annotated[
        str | None,
        _chosen(
            "--since",
            metavar="TIME",
            help="Only messages stored at or after this time: 2026-07-14T09:30, or 2h for two hours ago.",
        ),
    ] = None,
    until: Annotated[
        str | None, _chosen("--until", metavar="TIME", help="Only messages stored before this time.")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        _chosen(
            "--offsets",
            metavar="QUEUE:FIRST-PAST",
            help="Only these offsets of a queue, excluding PAST; may be repeated.",
        ),
    ] = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Continue even if messages are missing from the archive in between.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    cores: Cores = DEFAULT_CORES,
    broker: OneBroker = None,
    as_json: Json = False,
) -> None:
    """Send messages from the archive, or from a topic, to a topic again.

    All messages are stored at once, or none. Running a replay again with the same --write-id, for example after a
    crash, sends nothing twice. The property [bold]REPLAY_OF[/bold] of each copy names its original, as
    topic:queue:offset. The messages of a queue stay in order. The topic TO has to exist.

    \b
    [bold]Examples[/bold]
      mqdb spark replay orders again --write-id a1 --since 2h
      mqdb spark replay orders again --write-id a2 --offsets 0:0-9 --offsets 1:5-7
      mqdb spark replay orders again --write-id a3 --archive --since 2026-07-14
      mqdb spark replay orders again --write-id a4 --archive --dry-run
    """
    settings = start(context)
    begin, end = (
        None if text is None else parse_time(name, text) for name, text in (("since", since), ("until", until))
    )
    ranges = parse_offsets(offsets or ())
    one = chosen_broker(settings, broker)
    from mqdb.pipeline.jobs import replaying
    from mqdb.pipeline.jobs.replaying import Origin

    origin = Origin(source, begin, end, ranges, is_archived=archived, allow_gaps=allow_gaps)
    with bar("counting" if dry_run else "replaying"), spark_session(cores) as spark:
        if dry_run:
            row: Row = {"messages": replaying.count_replay(spark, one.dsn, origin)}
        else:
            result = replaying.replay(spark, one.dsn, origin, topic, write_id=write_id)
            outcome = "done before" if result.is_repeated else "sent"
            row = {"messages": result.messages, "outcome": outcome}
    print_rows([{"from": source, "to": topic, "write_id": write_id, **row}], as_json, "")


def parse_offsets(texts: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Offset ranges by queue id. Raises ParameterInvalid."""
    ranges: dict[int, tuple[int, int]] = {}
    for text in texts:
        match = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,18})-([0-9]{1,18})", text)
        if match is None:
            raise ParameterInvalid(
                "offsets", text, "must be a queue, the first offset and the offset after the last: 0:100-200"
            )
        queue_id, first, past = map(int, match.groups())
        if queue_id in ranges:
            raise ParameterInvalid("offsets", text, f"queue {queue_id} is given twice")
        ranges[queue_id] = first, past
    return ranges
