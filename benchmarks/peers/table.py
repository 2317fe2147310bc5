"""The table: one for each stage, with the columns that have values."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.table import Table

from benchmarks.peers.results import BASE_SIDE, Row, Spread

#: Figure, heading, digits behind the point.
_COLUMNS: Final = (
    ("rate", "messages/s", 0),
    ("sent_rate", "sent/s", 0),
    ("p50", "p50 ms", 1),
    ("p99", "p99 ms", 1),
    ("server_us", "server µs", 0),
    ("client_us", "client µs", 0),
    ("wal", "WAL B", 0),
    ("wal_records", "without images", 0),
    ("disk", "disk B", 0),
    ("foreign", "foreign CPU", 2),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    for stage, found in groupby(rows, key=lambda row: row.stage):
        yield _table(stage, list(found))


def _table(stage: str, rows: Sequence[Row]) -> Table:
    columns = [column for column in _COLUMNS if any(row.figures.get(column[0]) for row in rows)]
    is_latency = any(row.figures.get("p50") for row in rows)
    table = Table(title=f"{stage}: median (range)", title_justify="left", pad_edge=False)
    for heading in ("work", "side", "way"):
        table.add_column(heading)
    table.add_column("rounds", justify="right")
    for _, heading, _ in columns:
        table.add_column(heading, justify="right")
    table.add_column(f"{BASE_SIDE} / it, " + ("p50" if is_latency else "rate"), justify="right")
    before = ""
    for row in rows:
        if before and row.work != before:
            table.add_section()
        ratio = row.latency_ratio if is_latency else row.rate_ratio
        figures = [shown(row.figures.get(name), digits) for name, _, digits in columns]
        work = row.work if row.work != before else ""
        table.add_row(work, row.side, row.way, _rounds(row), *figures, shown(ratio, 2))
        before = row.work
    return table


def _rounds(row: Row) -> str:
    """The rounds that count, and the number of discarded ones."""
    return f"{row.kept}" + (f" (-{row.discarded})" if row.discarded else "")


def shown(spread: Spread | None, digits: int) -> str:
    """Median and range; an empty range is left out."""
    if spread is None:
        return "-"
    median, least, most = (f"{value:,.{digits}f}" for value in (spread.median, spread.least, spread.most))
    return median if least == most else f"{median} ({least}-{most})"
