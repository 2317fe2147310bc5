"""The output of commands: a table for people, or one JSON object on each line for programs.

Rows hold plain values: a switch is a bool, a time a datetime, and a missing value None. This module formats them as
text for people and as JSON.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from mqdb.cli.times import shown_time

if TYPE_CHECKING:
    from rich.table import Table

    from mqdb.settings import Settings
    from mqdb_client import Admin, Answers

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on each line.")]
Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        metavar="NAME",
        help="Only this broker; may be repeated. If not given, all brokers.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

#: Values by their names in JSON; the columns of a table have the same names with spaces instead of underscores.
Row: TypeAlias = dict[str, Any]

T = TypeVar("T")

#: Headings of columns that contain ids.
_IDS: Final = frozenset({"message", "message id", "transaction id", "client id"})

#: Columns whose times are shown to the millisecond; all other times are shown to the second.
_TO_MILLISECONDS: Final = frozenset({"due", "last_stored"})


def has_several(known: "Admin | Settings") -> bool:
    """Whether there are several brokers, so that output has to name the broker."""
    return len(known.brokers) > 1


def on(known: "Admin | Settings", broker_name: str) -> str:
    """The broker as the end of a sentence: " on NAME", or "" if there is only one broker."""
    return f" on {broker_name}" if has_several(known) else ""


def of_broker(known: "Admin | Settings", broker_name: str) -> Row:
    """The broker column of a row; empty if there is only one broker."""
    return {"broker": broker_name} if has_several(known) else {}


def of_part(described: Sequence[Row], name: str) -> list[Row]:
    """The rows that each item has under `name`, with the item's broker column if it has one."""
    return [({"broker": each["broker"]} if "broker" in each else {}) | row for each in described for row in each[name]]


def print_done(admin: "Admin", answers: "Answers[T]", sentence: Callable[[T], str]) -> None:
    """Print what was done on each broker, then raise the errors of brokers that failed."""
    for name, result in answers.results.items():
        print(f"{sentence(result)}{on(admin, name)}")
    answers.check()


def print_answers(
    admin: "Admin",
    answers: "Answers[list[T]]",
    row_of: Callable[[T], Row],
    as_json: bool,
    nothing: str,
    *,
    broker_at: int = 1,
    ordered: bool = False,
    descending: bool = False,
) -> None:
    """Print the answers of brokers, with the broker column at `broker_at`, then raise the errors of other brokers.

    Rows are grouped by broker, or ordered by their first column.
    """
    rows = [
        dict([*row[:broker_at], *of_broker(admin, name).items(), *row[broker_at:]])
        for name, found in answers.results.items()
        for row in (list(row_of(each).items()) for each in found)
    ]
    if ordered:
        rows.sort(key=lambda row: next(iter(row.values())), reverse=descending)
    if rows or not answers.failures:
        print_rows(rows, as_json, nothing)
    answers.check()


def print_rows(rows: Sequence[Row], as_json: bool, nothing: str) -> None:
    """Print rows with the same columns; for people, print `nothing` if there are no rows."""
    if as_json:
        for row in rows:
            print(json_of(row))
        return
    from mqdb.cli.console import standard_output

    standard_output().print(table_of(rows) if rows else nothing)


def table_of(rows: Sequence[Row]) -> "Table":
    """A table of rows with the same columns; numbers are right-aligned.

    Ids are not folded, because people copy them.
    """
    from mqdb.cli.console import table

    numbers = [spoken(name) for name in rows[0] if any(_is_number(row[name]) for row in rows)]
    times = [spoken(name) for name in rows[0] if any(isinstance(row[name], datetime) for row in rows)]
    shown = [tuple(_shown(name, value) for name, value in row.items()) for row in rows]
    return table([spoken(name) for name in rows[0]], shown, right=numbers, whole=_IDS, words=times)


def json_of(value: object) -> str:
    """A value as JSON on one line; times are in ISO 8601, with their time zone."""
    return json.dumps(value, default=datetime.isoformat)


def in_a_line(row: Row) -> str:
    """A single row as one line for people."""
    return ", ".join(f"{spoken(name)} {_shown(name, value)}" for name, value in row.items())


def spoken(name: str) -> str:
    """A name as a heading, with spaces instead of underscores."""
    return name.replace("_", " ")


def seconds(value: float | None) -> float | None:
    """Round seconds to one decimal place."""
    return None if value is None else round(value, 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(name: str, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return shown_time(value, "milliseconds" if name in _TO_MILLISECONDS else "seconds")
    return value
