"""A report of dead letters as one HTML page: no scripts, no other files, no network; light or dark like the system.

The contents are untrusted, so everything is escaped, and the page forbids the browser to load anything.
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from mqdb.drawing.charts import Column, stacked
from mqdb.drawing.templating import environment
from mqdb.errors import ParameterInvalid
from mqdb.pipeline.jobs.dead_letter_report import Count, DeadLetterReport, HourCount

#: The number of bars in a chart; one more bar is for the rest.
MOST_BARS: Final = 12

#: The number of columns in the chart over time; a longer time has longer spans.
MOST_COLUMNS: Final = 60

#: The number of exceptions with their own colour in the chart over time; one more colour is for the rest.
MOST_SERIES: Final = 6

UNSAID: Final = "(not said)"

_SPANS: Final = tuple(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def write_page(report: DeadLetterReport, path: Path) -> None:
    """Write the page; the file gets its name when it is complete. Raises ParameterInvalid if it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(page(report), "utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ParameterInvalid("html", str(path), error.strerror or str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def page(report: DeadLetterReport) -> str:
    """The whole page."""
    templates = environment("mqdb.pipeline.jobs")
    templates.filters.update(time=_shown, said=_said, colour=_colour)
    bars = {
        "Exceptions": _bars(report.by_exception),
        "Topics of origin": _bars(report.by_topic),
        "Consumer groups": _bars(report.by_group),
        "Deliveries before they died": [Count(_attempts(count), count.messages) for count in report.by_attempts],
    }
    over_time = _over_time(report) if report.messages else {}
    text = templates.get_template("dead_letters.html").render(report=report, bars=bars, **over_time)
    return text.encode("utf-8", "replace").decode()


def _over_time(report: DeadLetterReport) -> dict[str, object]:
    names = [count.name for count in report.by_exception]
    own, has_rest = names[:MOST_SERIES], len(names) > MOST_SERIES
    series = [_said(name) for name in own] + ["others"] * has_rest
    columns = columns_of(report.by_hour, [None if name is None else str(name) for name in own], has_rest)
    top, blocks = stacked(columns)
    middle, last = len(columns) // 2, len(columns) - 1
    return {
        "series": series,
        "top": top,
        "columns": [(_title(column, series), drawn) for column, drawn in zip(columns, blocks, strict=True)],
        "below": [columns[0].label, columns[middle].label if last > 1 else "", columns[last].label if last else ""],
    }


def _bars(counts: Sequence[Count]) -> list[Count]:
    rest = counts[MOST_BARS:]
    others = [Count(f"{len(rest):,} others", sum(count.messages for count in rest))] if rest else []
    return [*counts[:MOST_BARS], *others]


def columns_of(hours: Sequence[HourCount], own: Sequence[str | None], has_rest: bool) -> list[Column]:
    """One column per span from the first hour to the last, including empty spans. For many hours the spans are longer.

    Each column has a value for each exception in `own`, and with `has_rest` one for all others. Spans start at
    multiples of their length since 1970, so days start at midnight in UTC.
    """
    first, last = hours[0].hour, hours[-1].hour
    span = next((span for span in _SPANS if (last - first) / span < MOST_COLUMNS - 1), _SPANS[-1])
    begin = _begin(first, span)
    counts: Counter[tuple[datetime, int]] = Counter()
    place = {name: number for number, name in enumerate(own)}
    for hour in hours:
        counts[_begin(hour.hour, span), place.get(hour.exception, len(own))] += hour.messages
    starts = [begin + number * span for number in range((_begin(last, span) - begin) // span + 1)]
    series = range(len(own) + has_rest)
    shape = "%m-%d %H:%M" if span < timedelta(days=1) else "%Y-%m-%d"
    return [Column(start.strftime(shape), tuple(counts[start, number] for number in series)) for start in starts]


def _begin(time: datetime, span: timedelta) -> datetime:
    return time - (time - _EPOCH) % span


def _title(column: Column, series: Sequence[str]) -> str:
    told = [f"{each}: {value:,}" for each, value in zip(series, column.values, strict=True) if value]
    return "\n".join([f"{column.label}: {sum(column.values):,}", *told])


def _colour(series: int) -> str:
    return f"series-{series + 1}" if series < MOST_SERIES else "series-rest"


def _attempts(count: Count) -> str | None:
    return None if count.name is None else f"{count.name} {'delivery' if count.name == 1 else 'deliveries'}"


def _said(value: object) -> str:
    return UNSAID if value is None else str(value)


def _shown(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
