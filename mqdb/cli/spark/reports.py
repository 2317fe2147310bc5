"""`mqdb spark dlq-report | stats`: counts made by Spark, as tables on the terminal and as files."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.options import Command, start
from mqdb.cli.rows import Json, Row, print_rows
from mqdb.cli.spark.running import DEFAULT_CORES, Cores, OneBroker, running
from mqdb.cli.times import parse_time, shown_time
from mqdb.common.printable import json_text

if TYPE_CHECKING:
    from mqdb.pipeline.jobs.dead_letter_report import Cause, DeadLetterReport


def _time_option(name: str, help: str) -> Any:
    return typer.Option(name, metavar="TIME", help=help, show_default=False)


def register(app: typer.Typer) -> None:
    """Add the commands to `mqdb spark`."""
    app.command("dlq-report", cls=Command)(dlq_report)
    app.command("stats", cls=Command)(stats)


def dlq_report(
    context: typer.Context,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group", metavar="NAME", help="Only dead letters of this group; may be repeated.", show_default=False
        ),
    ] = None,
    since: Annotated[
        str | None,
        _time_option(
            "--since", "Only messages given up at or after this time: 2026-07-14T09:30, or 2h for two hours ago."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report as a page with charts.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=200, help="Show at most this many causes, the most frequent first.")
    ] = 20,
    broker: OneBroker = None,
    cores: Cores = DEFAULT_CORES,
    as_json: Json = False,
) -> None:
    """Count dead letters by group, topic of origin, exception and error.

    Errors that differ only in numbers, ids, times and quoted text are counted together. The page also shows the dead
    letters over time. The page is a single file and needs no network.

    \b
    [bold]Examples[/bold]
      mqdb spark dlq-report
      mqdb spark dlq-report --group billing --since 7d --html dead.html
      mqdb spark dlq-report --json | jq -r .error
    """
    settings = start(context)
    begin = None if since is None else parse_time("since", since)
    with running(settings, broker, "counting dead letters", cores) as (spark, dsn):
        from mqdb.pipeline.jobs.dead_letter_counting import dlq_report

        report = dlq_report(spark, dsn, groups=groups, since=begin, html=html)
    print_report(report, limit, as_json)
    if html is not None and not as_json:
        print(f"the page is in {html}")


def print_report(report: "DeadLetterReport", limit: int, as_json: bool) -> None:
    """Print a row for each of the most frequent causes, and for people also the totals."""
    causes = report.causes[:limit]
    if as_json:
        for cause in causes:
            print(json_text(_json_of(asdict(cause))))
        return
    print_rows([cause_row(cause) for cause in causes], False, "there are no dead letters")
    if report.messages:
        more = report.causes_found - len(causes)
        print(f"{report.messages:,} dead letters of {_counted(len(report.by_group), 'group')}, ", end="")
        print(_counted(report.causes_found, "cause") + (f", {more:,} of them not shown" if more else ""))


def cause_row(cause: "Cause") -> Row:
    """A row of the table."""
    return {
        "messages": cause.messages,
        "group": cause.group,
        "topic": cause.topic,
        "exception": cause.exception,
        "error": cause.error,
        "deliveries": cause.deliveries,
        "first_died": cause.first_died,
        "last_died": cause.last_died,
    }


def stats(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="The topics; if not given, all topics except those of groups and of the broker.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        _time_option(
            "--since", "Only messages stored at or after this time: 2026-07-14T09:30, or 2h for two hours ago."
        ),
    ] = None,
    until: Annotated[str | None, _time_option("--until", "Only messages stored before this time.")] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet",
            metavar="DIR",
            help="Write the rows to this directory, and print only a summary.",
            show_default=False,
        ),
    ] = None,
    broker: OneBroker = None,
    cores: Cores = DEFAULT_CORES,
    as_json: Json = False,
) -> None:
    """Count messages and bytes by topic, tag and hour, and how soon they were dispatched.

    Hours are in UTC. A dispatch time runs from storing a message to the batch that gave the message its offset; the
    columns show the times within which half and 99 percent of the messages were dispatched. These times are known only
    for the broker's newest 1,000 batches, and empty for older messages.

    \b
    [bold]Examples[/bold]
      mqdb spark stats
      mqdb spark stats orders billing --since 24h
      mqdb spark stats --since 2026-07-01 --until 2026-08-01 --parquet stats-july
    """
    settings = start(context)
    begin, end = (
        None if text is None else parse_time(name, text) for name, text in (("since", since), ("until", until))
    )
    with running(settings, broker, "counting messages", cores) as (spark, dsn):
        from mqdb.pipeline.jobs.statistics import stats, topic_totals

        counted = stats(spark, dsn, topics or None, since=begin, until=end, parquet=parquet)
        if parquet is None:
            rows = [row.asDict() for row in counted.collect()]
        else:
            rows = [total._asdict() for total in topic_totals(counted)]
    print_rows([_json_of(row) if as_json else stats_row(row) for row in rows], as_json, "there are no messages")
    if parquet is not None and not as_json:
        print(f"{sum(row['rows'] for row in rows):,} rows are in {parquet}")


def stats_row(row: Row) -> Row:
    """A row of the table: hours in the time zone of this machine, times in milliseconds with one decimal place."""
    return {
        name: shown_time(value, "minutes") if isinstance(value, datetime) else _rounded(value)
        for name, value in row.items()
    }


def _rounded(value: object) -> object:
    return round(value, 1) if isinstance(value, float) else value


def _json_of(row: Row) -> Row:
    return {
        name: value.astimezone().isoformat() if isinstance(value, datetime) else value for name, value in row.items()
    }


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
