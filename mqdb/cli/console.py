"""The output of commands: tables for people, lines for programs, progress for terminals."""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from mqdb.common.printable import printable

#: Wide enough for any of our tables: in a file or a pipe, each row is one line.
_NO_TERMINAL_WIDTH = 1000

#: Words up to this length are not broken in a table.
_UNBROKEN_CHARACTERS = 10


class _Console(Console):
    """A console that prints control characters as numbers; a `Text` is printed unchanged."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def standard_output() -> Console:
    """The console for results. Only marked text is coloured."""
    return _Console(highlight=False, width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH)


def standard_error() -> Console:
    """The console for notes and progress, which are not part of the result."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    words: Collection[str] = (),
) -> Table:
    """A table of plain values, in which None is an empty cell.

    The columns named in `right` hold numbers. On a narrow terminal, these columns and the columns in `whole` are not
    folded, and the columns in `words` are folded only between words.
    """
    made = _FittingTable(whole={*right, *whole}, words=words)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if value is None else printable(cell(value))) for value in row))
    return made


class _FittingTable(Table):
    """A table that never folds ids, or the words of headings, even on a narrow terminal.

    If a column then has no room, each row becomes a block with one line for each value.
    """

    def __init__(self, *, whole: Collection[str], words: Collection[str]) -> None:
        super().__init__(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        self._whole = whole
        self._words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A space and the position of a line between two columns, and a space after the last column.
        room = options.max_width - 2 * len(self.columns) + 1
        sizes = [self._size(column) for column in self.columns]
        if sum(least for least, _ in sizes) > room:
            yield from self._blocks()
            return
        most = max((wanted for _, wanted in sizes), default=0)
        while sum(widths := [max(least, min(wanted, most)) for least, wanted in sizes]) > room:
            most -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _size(self, column: Column) -> tuple[int, int]:
        """The minimum width and the wanted width of a column."""
        heading = Text(str(column.header))
        cells = [each for each in column.cells if isinstance(each, Text)]
        wanted = max(_longest_line(each) for each in (heading, *cells))
        if heading.plain in self._whole:
            return max(_longest_word(heading), *map(_longest_line, cells), 1), wanted
        words = max(map(_longest_word, cells), default=0)
        if heading.plain not in self._words:
            words = min(words, _UNBROKEN_CHARACTERS)
        return max(_longest_word(heading), words, 1), wanted

    def _blocks(self) -> RenderResult:
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            block = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
            for column, value in zip(self.columns, row, strict=True):
                if str(value):
                    block.add_row(Text(str(column.header), style="bold"), value)
            if number:
                yield Text()
            yield block


def _longest_line(text: Text) -> int:
    return max((line.cell_len for line in text.split()), default=0)


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def cell(value: object) -> str:
    """Format a number with thousands separators, and leave any other value as it is."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def progress(console: Console) -> Progress:
    """Progress bars, each followed by a `note`; prints nothing if the console is not a terminal."""
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
