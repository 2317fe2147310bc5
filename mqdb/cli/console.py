"""What commands print: tables for people, lines for programs, progress for those who watch."""

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

#: Wide enough for any table of ours: what is no terminal gets each row on one line.
_NO_TERMINAL_WIDTH = 1000


def standard_output() -> Console:
    """The console for results. Colours nothing but what is marked."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH)


def standard_error() -> Console:
    """The console for what is not the result: notes and progress."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table of plain values; the columns named in `right` hold numbers. None is an empty cell."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if value is None else escape(cell(value)) for value in row))
    return made


def cell(value: object) -> str:
    """Numbers with separators; everything else as it is."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def progress(console: Console) -> Progress:
    """Bars that show how much is done, with a `note` behind each; nothing where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
