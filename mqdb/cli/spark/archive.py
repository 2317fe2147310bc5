"""`mqdb spark archive`: writes segments to Parquet."""

from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import start
from mqdb.cli.rows import Json, Row, print_rows
from mqdb.cli.spark.running import DEFAULT_CORES, Cores, OneBroker, bar, chosen_broker, spark_session

if TYPE_CHECKING:
    from mqdb.broker.archive import SegmentContents
    from mqdb.store.segments.archived_segments import ArchivedSegment


def archive(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A folder, or a URI that Spark can open: s3a://...", show_default=False),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Only this topic; may be repeated.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="Archive at most this many segments, the oldest first.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the segments that would be archived.")] = False,
    cores: Cores = DEFAULT_CORES,
    broker: OneBroker = None,
    as_json: Json = False,
) -> None:
    """Write full segments to Parquet files, by topic and hour, each segment once.

    A segment counts as archived once its files have been read back and compared with the broker. It is then listed in
    [bold]mqdb.archived_segment[/bold], even after retention has dropped it. With the setting retain_until_archived,
    retention drops only archived segments. With --topic, a segment counts as archived for these topics only; retention
    still waits until it is archived without --topic.

    The next run removes files that a killed run left behind. A copy of a database needs its own PATH.

    \b
    [bold]Examples[/bold]
      mqdb spark archive /data/archive
      mqdb spark archive /data/archive --dry-run
      mqdb spark archive s3a://bucket/archive --topic orders --topic payments
    """
    settings = start(context)
    one = chosen_broker(settings, broker)
    from mqdb.pipeline.jobs import archiving

    if dry_run:
        planned = archiving.plan_archive(one.dsn, topics=topics)[:limit]
        print_rows([_planned_row(contents) for contents in planned], as_json, _NOTHING)
        return
    with bar("archiving") as (bars, task), spark_session(cores) as spark:

        def show(done: int, total: int, note: str) -> None:
            bars.update(task, completed=done, total=total, note=note)

        result = archiving.archive(spark, one.dsn, path, topics=topics, limit=limit, on_progress=show)
    print_rows([archived_row(segment) for segment in result.archived], as_json, _NOTHING)
    if as_json:
        return
    if result.archived:
        messages, size = (sum(getattr(each, name) for each in result.archived) for name in ("messages", "bytes"))
        print(f"{messages:,} messages in {size:,} bytes are archived")
    if result.dropped:
        print(f"dropped by retention before they were read: segments {', '.join(map(str, result.dropped))}")
    if result.removed:
        print(f"removed {len(result.removed)} unfinished folders of earlier runs")


_NOTHING = "All full segments are archived."


def _planned_row(contents: "SegmentContents") -> Row:
    return {"segment": contents.segment, "topics": len(contents.offsets), "messages": contents.messages}


def archived_row(archived: "ArchivedSegment") -> Row:
    """A row of the table."""
    return {
        "segment": archived.segment,
        "topics": len(archived.offsets),
        "messages": archived.messages,
        "bytes": archived.bytes,
        "first_stored": archived.first_stored_at,
        "last_stored": archived.last_stored_at,
        "path": archived.path,
    }
