"""The report: a table for people, one JSON object for machines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mqdb.cli.bench.figures import Figure, Goal, Series

_COLUMNS = ("", "measured", "median", "lowest - highest", "CPU of PostgreSQL", "CPU of the load", "ratio", "wanted")


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark has found, where and how. `parameters` are shown as they are; `notes` are sentences."""

    benchmark: str
    environment: dict[str, Any]
    parameters: dict[str, Any]
    figures: Sequence[Figure]
    notes: Sequence[str] = ()

    def as_json(self) -> str:
        """One object on one line."""
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
        """For people."""
        console.print(f"[bold]mqdb bench {self.benchmark}[/bold]\n")
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
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    verdicts = "\n".join(filter(None, (_verdict(figure, goal) for goal in figure.goals)))
    yield (f"[bold]{figure.name}[/bold]", *_cells(figure.measured, figure.unit), ratio, verdicts)
    if figure.reference is not None:
        yield ("", *(f"[dim]{cell}[/dim]" for cell in _cells(figure.reference, figure.unit)), "", "")
    for name in sorted({name for each in figure.measured.rounds for name in each.details}):
        value = figure.measured.detail(name)
        if value is not None and not name.endswith("_cpu_us"):
            yield ("", f"[dim]  {name.replace('_', ' ')}[/dim]", f"[dim]{_number(value)}[/dim]", "", "", "", "", "")


def _cells(series: Series, unit: str) -> tuple[str, ...]:
    values = [each.value for each in series.rounds]
    return (
        escape(series.label),
        f"{_number(series.median)} {unit}",
        f"{_number(min(values))} - {_number(max(values))}",
        _cpu(series, "server_cpu_us"),
        _cpu(series, "client_cpu_us"),
    )


def _cpu(series: Series, name: str) -> str:
    value = series.detail(name)
    return "" if value is None else f"{value:.1f} µs each"


def _verdict(figure: Figure, goal: Goal) -> str:
    value = figure.value_of(goal)
    if value is None:
        return ""
    what = {"ratio": "ratio ", "value": ""}.get(goal.of, f"{goal.of.replace('_ms', '')} ")
    text = f"{what}{'≥' if goal.at_least else '≤'} {_number(goal.bound)}"
    return f"[green]{text} reached[/green]" if goal.is_reached(value) else f"[yellow]{text} MISSED[/yellow]"


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
