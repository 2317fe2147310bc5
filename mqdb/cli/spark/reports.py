"""`mqdb spark dlq-report | stats`: what Spark counts, as tables on the terminal and as files."""

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
        typer.Option("--group", metavar="NAME", help="Only of this group; may be repeated.", show_default=False),
    ] = None,
    since: Annotated[
        str | None, _time_option("--since", "Died then or later: 2026-07-14T09:30, or 2h for ago.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write it as a page with charts, too.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="So many causes, the most frequent first.")] = 20,
    broker: OneBroker = None,
    cores: Cores = DEFAULT_CORES,
    as_json: Json = False,
) -> None:
    """Count dead letters by group, topic of origin, exception and error.

    Errors that differ only in numbers, ids, times and quoted text count as one.
    The page shows them over time as well. It is one file and needs no network.

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
    """A line for each of the most frequent causes; for people, what they add up to as well."""
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
    """A line of the table."""
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
        typer.Argument(metavar="TOPIC", help="Unset, all but those of groups and the broker.", show_default=False),
    ] = None,
    since: Annotated[
        str | None, _time_option("--since", "Stored then or later: 2026-07-14T09:30, or 2h for ago.")
    ] = None,
    until: Annotated[str | None, _time_option("--until", "Stored before then.")] = None,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="DIR", help="Write the rows there; print a summary.", show_default=False),
    ] = None,
    broker: OneBroker = None,
    cores: Cores = DEFAULT_CORES,
    as_json: Json = False,
) -> None:
    """Count messages and bytes by topic, tag and hour, and how soon they were dispatched.

    Hours are in UTC. The times are from a message's storing to the batch that
    gave it its offset: half and 99 percent of the messages took no longer. They
    are known for the newest 1,000 batches of the broker only, and empty before.

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
    """A line of the table: hours in the zone of this machine, times in milliseconds to the tenth."""
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
