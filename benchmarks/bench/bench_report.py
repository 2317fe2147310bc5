"""The report: a table for people, one JSON object for machines."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bench.figures import VALUE, Figure, Goal, Series

_COLUMNS = ("", "measured", "median", "lowest - highest", "CPU of PostgreSQL", "CPU of the load", "ratio", "wanted")

#: How the names of details end that have a column of their own.
_CPU: Final = "_cpu_us"

#: A number, or a ratio, by the name of the value or detail.
_Found: TypeAlias = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a benchmark, with its environment and parameters.

    `parameters` are printed unchanged; `notes` are sentences.
    """

    benchmark: str
    environment: dict[str, Any]
    parameters: dict[str, Any]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()

    def as_json(self) -> str:
        """The report as one JSON object on one line."""
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "environment": self.environment,
                "parameters": self.parameters,
                "figures": [figure.as_json() for figure in self.figures],
                "notes": list(self.notes),
            }
        )

    def show(self, console: Console) -> None:
        """Print the report for people."""
        console.print(f"[bold]do.py bench {self.benchmark}[/bold]\n")
        given = Table.grid(padding=(0, 2))
        for name, value in (self.environment | self.parameters).items():
            given.add_row(name.replace("_", " "), escape(_shown(value)))
        console.print(given)
        console.print()
        console.print(self._table())
        for note in self.notes:
            console.print(f"[dim]{escape(note)}[/dim]")

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for number, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if number in (0, 1, 7) else "right")
        for figure in self.figures:
            for row in _rows(figure):
                table.add_row(*row)
            table.add_section()
        return table


def _rows(figure: Figure) -> Iterator[tuple[str, ...]]:
    measured = figure.measured
    yield (
        f"[bold]{figure.name}[/bold]",
        *_cells(measured, figure.unit),
        "",
        _verdicts(measured, VALUE, measured.number),
    )
    yield from _details(measured, measured.number)
    for reference in figure.references:
        ratio_of = partial(figure.ratio_to, reference)
        cells = [f"[dim]{cell}[/dim]" for cell in _cells(reference, figure.unit)]
        yield ("", *cells, _ratio(ratio_of(VALUE)), _verdicts(reference, VALUE, ratio_of, "ratio "))
        yield from _details(reference, ratio_of, is_ratio=True)


def _details(series: Series, found: _Found, *, is_ratio: bool = False) -> Iterator[tuple[str, ...]]:
    for name in series.details:
        number = series.number(name)
        if number is None or name.endswith(_CPU):
            continue
        ratio = _ratio(found(name)) if is_ratio else ""
        verdicts = _verdicts(series, name, found, "ratio " if is_ratio else "")
        yield (
            "",
            f"[dim]  {name.replace('_', ' ')}[/dim]",
            f"[dim]{_number(number)}[/dim]",
            "",
            "",
            "",
            ratio,
            verdicts,
        )


def _cells(series: Series, unit: str) -> tuple[str, ...]:
    values = [each.value for each in series.rounds]
    return (
        escape(series.label),
        f"{_number(series.median)} {unit}",
        f"{_number(min(values))} - {_number(max(values))}",
        _cpu(series, f"server{_CPU}"),
        _cpu(series, f"client{_CPU}"),
    )


def _cpu(series: Series, name: str) -> str:
    number = series.number(name)
    return "" if number is None else f"{number:.1f} µs each"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _verdicts(series: Series, name: str, found: _Found, what: str = "") -> str:
    """The verdicts on the goals with this name."""
    number = found(name)
    if number is None:
        return ""
    return "\n".join(_verdict(goal, number, what) for goal in series.goals if goal.of == name)


def _verdict(goal: Goal, number: float, what: str) -> str:
    text = f"{what}{'≥' if goal.at_least else '≤'} {_number(goal.bound)}"
    return f"[green]{text} reached[/green]" if goal.is_reached(number) else f"[yellow]{text} MISSED[/yellow]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.2f}".rstrip("0").rstrip(".")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_shown(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " to ".join(_shown(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
