"""A report of dead letters as one HTML page: no script, no other file, no network; light or dark as the system is.

What it shows was sent by strangers: all of it is escaped, and the page forbids itself to load anything.
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from mqdb.errors import ParameterInvalid
from mqdb.pipeline.charts import MOST_SERIES, Bar, Column, horizontal_bars, stacked_columns
from mqdb.pipeline.dead_letter_report import Cause, Count, DeadLetterReport, HourCount
from mqdb.pipeline.markup import Markup, element, join

#: Bars of a chart; what is left is one more bar.
MOST_BARS: Final = 12

#: Columns of the chart over time; a longer time has longer spans.
MOST_COLUMNS: Final = 60

UNSAID: Final = "(not said)"

_SPANS: Final = tuple(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_STYLE: Final = Markup("""
:root { color-scheme: light dark; --page: #fcfcfb; --text: #0b0b0b; --soft: #52514e; --line: #dddcd7; --card: #ffffff;
  --series-1: #2a78d6; --series-2: #eb6834; --series-3: #1baf7a; --series-4: #eda100; --series-5: #e87ba4;
  --series-6: #4a3aa7; --series-rest: #a5a49d; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --text: #ffffff; --soft: #c3c2b7; --line: #3d3d3a;
  --card: #232322; --series-1: #3987e5; --series-2: #d95926; --series-3: #199e70; --series-4: #c98500;
  --series-5: #d55181; --series-6: #9085e9; --series-rest: #7a7972; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 24px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 0 0 12px; }
p { margin: 0 0 16px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; min-width: 0; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; }
main > .wide { grid-column: 1 / -1; }
dl { display: flex; flex-wrap: wrap; gap: 8px 40px; margin: 0 0 20px; } dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-size: 24px; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; font-size: 13px; }
svg text { fill: var(--text); } svg .axis { fill: var(--soft); font-size: 12px; }
svg .end { text-anchor: end; } svg .centre { text-anchor: middle; } svg .middle { dominant-baseline: central; }
svg .grid { stroke: var(--line); }
svg .series-1 { fill: var(--series-1); } svg .series-2 { fill: var(--series-2); }
svg .series-3 { fill: var(--series-3); } svg .series-4 { fill: var(--series-4); }
svg .series-5 { fill: var(--series-5); } svg .series-6 { fill: var(--series-6); }
svg .series-rest { fill: var(--series-rest); }
.scroll { overflow-x: auto; } .scroll > svg { min-width: 720px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.time { white-space: nowrap; } td.text { min-width: 300px; overflow-wrap: anywhere; }
td.name { overflow-wrap: anywhere; min-width: 150px; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; } small { color: var(--soft); }
""")


def write_page(report: DeadLetterReport, path: Path) -> None:
    """Write the page; the file has its name when it is whole. Raises ParameterInvalid where it cannot be written."""
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
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        element("title", "Dead letters"),
        element("style", _STYLE),
    )
    body = element(
        "body", element("h1", "Dead letters"), element("p", _asked_for(report)), _totals(report), _main(report)
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _asked_for(report: DeadLetterReport) -> str:
    groups = "all consumer groups" if report.groups is None else f"consumer groups {', '.join(report.groups)}"
    since = "" if report.since is None else f", dead since {_shown(report.since)}"
    return f"What {groups} have given up{since}; as of {_shown(report.made_at)}. Times are in UTC."


def _totals(report: DeadLetterReport) -> Markup:
    facts = {
        "messages": report.messages,
        "causes": report.causes_found,
        "groups": len(report.by_group),
        "topics of origin": len(report.by_topic),
    }
    return element(
        "dl", *(element("div", element("dt", name), element("dd", f"{value:,}")) for name, value in facts.items())
    )


def _main(report: DeadLetterReport) -> Markup:
    if not report.messages:
        return element("main", element("section", "There are no dead letters.", class_="wide"))
    attempts = [Bar(_attempts(count), count.messages) for count in report.by_attempts]
    charts = (
        _card("When they died, and of which exception", _over_time(report), wide=True),
        _card("Exceptions", horizontal_bars("exceptions", "Dead letters by exception", _bars(report.by_exception))),
        _card("Topics of origin", horizontal_bars("topics", "Dead letters by topic of origin", _bars(report.by_topic))),
        _card("Consumer groups", horizontal_bars("groups", "Dead letters by consumer group", _bars(report.by_group))),
        _card("Deliveries before they died", horizontal_bars("attempts", "Dead letters by deliveries", attempts)),
        _card("Causes", _causes(report), wide=True),
    )
    return element("main", join(charts))


def _card(title: str, content: Markup, *, wide: bool = False) -> Markup:
    return element("section", element("h2", title), content, class_="wide" if wide else None)


def _bars(counts: Sequence[Count]) -> list[Bar]:
    shown = [Bar(UNSAID if count.name is None else str(count.name), count.messages) for count in counts[:MOST_BARS]]
    rest = counts[MOST_BARS:]
    return [*shown, Bar(f"{len(rest):,} others", sum(count.messages for count in rest))] if rest else shown


def _attempts(count: Count) -> str:
    return UNSAID if count.name is None else f"{count.name} {'delivery' if count.name == 1 else 'deliveries'}"


def _over_time(report: DeadLetterReport) -> Markup:
    names = [count.name for count in report.by_exception]
    own, has_rest = names[:MOST_SERIES], len(names) > MOST_SERIES
    series = [UNSAID if name is None else str(name) for name in own] + ["others"] * has_rest
    columns = columns_of(report.by_hour, [None if name is None else str(name) for name in own], has_rest)
    chart = stacked_columns("time", "Dead letters by time and exception", series, columns)
    return _scrolled(chart)


def columns_of(hours: Sequence[HourCount], own: Sequence[str | None], has_rest: bool) -> list[Column]:
    """A column for each span from the first hour to the last, empty ones too; hours, or longer where there are many.

    Each has a value for each exception of `own`, and if `has_rest` one for all others. Spans begin at multiples of
    their length since 1970, which is at midnight in UTC for days.
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


def _causes(report: DeadLetterReport) -> Markup:
    numbers = ("messages", "deliveries")
    names = ("messages", "group", "topic", "exception", "error", "deliveries", "died from, to")
    head = element(
        "tr", *(element("th", name, scope="col", class_="number" if name in numbers else None) for name in names)
    )
    rows = element("tbody", join([_row(cause) for cause in report.causes]))
    table = _scrolled(element("table", element("thead", head), rows))
    untold = report.causes_found - len(report.causes)
    return join([table, element("p", f"... and {untold:,} causes with fewer messages")]) if untold else table


def _scrolled(wide: Markup) -> Markup:
    """What a narrow screen shows a part of; keys scroll it as well."""
    return element("div", wide, class_="scroll", tabindex=0)


def _row(cause: Cause) -> Markup:
    return element(
        "tr",
        element("td", f"{cause.messages:,}", class_="number"),
        element("td", cause.consumer_group, class_="name"),
        element("td", UNSAID if cause.topic is None else cause.topic, class_="name"),
        element("td", UNSAID if cause.exception is None else element("code", cause.exception), class_="name"),
        element("td", _error(cause), class_="text"),
        element("td", deliveries(cause), class_="number"),
        element("td", _shown(cause.first_died), element("br"), _shown(cause.last_died), class_="time"),
    )


def _error(cause: Cause) -> Markup:
    folded = element("div", cause.error or "")
    if cause.example is None or cause.example == cause.error:
        return join([folded, element("small", f"message {cause.example_id}")])
    return join([folded, element("small", f"such as: {cause.example} (message {cause.example_id})")])


def deliveries(cause: Cause) -> str:
    """How often the messages of a cause were delivered: a number, or from the fewest to the most."""
    if cause.fewest_attempts is None or cause.most_attempts is None:
        return ""
    one = cause.fewest_attempts == cause.most_attempts
    return f"{cause.fewest_attempts:,}" if one else f"{cause.fewest_attempts:,} to {cause.most_attempts:,}"


def _shown(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
