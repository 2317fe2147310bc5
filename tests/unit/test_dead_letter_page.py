"""The page of a report is a single file, which displays any message text safely."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mqdb.common.printable import printable
from mqdb.drawing.charts import HEIGHT, WIDTH, Column, stacked
from mqdb.errors import ParameterInvalid
from mqdb.pipeline.jobs.dead_letter_page import MOST_BARS, MOST_COLUMNS, UNSAID, columns_of, page, write_page
from mqdb.pipeline.jobs.dead_letter_report import Cause, Count, DeadLetterReport, HourCount

HOUR = timedelta(hours=1)
NINE = datetime(2026, 7, 14, 9, tzinfo=UTC)
CAUSE = Cause(
    "billing",
    "orders",
    "shop.NoPrice",
    "no price for order-<n>",
    3,
    1,
    17,
    NINE,
    NINE + HOUR,
    "no price for order-17",
    "0A",
)
REPORT = DeadLetterReport(
    groups=None,
    since=None,
    made_at=NINE + 2 * HOUR,
    causes_found=1,
    causes=(CAUSE,),
    by_group=(Count("billing", 3),),
    by_topic=(Count("orders", 3),),
    by_exception=(Count("shop.NoPrice", 3),),
    by_attempts=(Count(1, 1), Count(17, 2)),
    by_hour=(HourCount(NINE, "shop.NoPrice", 1), HourCount(NINE + HOUR, "shop.NoPrice", 2)),
)


class Elements(HTMLParser):
    """The elements of a page; raises AssertionError if an element is not closed."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_tells_each_cause_with_an_example() -> None:
    texts = Elements(page(REPORT)).texts

    assert "no price for order-<n>" in texts
    assert "such as: no price for order-17 (message 0A)" in texts
    assert {"billing", "orders", "shop.NoPrice", "1 to 17", "2026-07-14 09:00"} <= set(texts)


def test_the_page_loads_nothing() -> None:
    elements = Elements(page(REPORT))

    found = elements.found
    assert not [tag for tag, _ in found if tag in ("script", "link", "img", "iframe", "object", "image", "use")]
    assert not [attributes for _, attributes in found if {"src", "href", "onclick", "xlink:href"} & set(attributes)]
    assert "default-src 'none'; style-src 'unsafe-inline'" in [each.get("content") for each in elements.all("meta")]


def test_the_chart_over_time_has_a_name_and_its_columns_say_what_they_count() -> None:
    elements = Elements(page(REPORT))

    charts = elements.all("svg")
    assert [chart["aria-label"] for chart in charts if chart.get("role") == "img"] == [
        "Dead letters by time and exception"
    ]
    assert all(chart.get("aria-hidden") for chart in charts if chart.get("role") != "img")
    assert {"07-14 09:00: 1\nshop.NoPrice: 1", "07-14 10:00: 2\nshop.NoPrice: 2"} <= set(elements.texts)


def test_bars_are_as_long_as_their_counts() -> None:
    topics = (Count("one", 1_000), Count("two", 500))

    elements = Elements(page(replace(REPORT, by_topic=topics)))

    widths = [bar["width"] for bar in elements.all("rect")]
    assert {"100.0", "50.0"} <= set(widths)
    assert {"one", "two", "1,000", "500"} <= set(elements.texts)


@pytest.mark.parametrize("nasty", ["<script>alert(1)</script>", "\"><b>'&amp;", "]]>", "a\x00b\x1b[31m\ud800"])
def test_what_strangers_sent_is_text_and_nothing_else(nasty: str) -> None:
    cause = replace(CAUSE, group=nasty, topic=nasty, exception=nasty, error=nasty, example=nasty + "1")
    named = (Count(nasty, 3),)
    hours = (HourCount(NINE, nasty, 3),)
    report = replace(
        REPORT, groups=(nasty,), causes=(cause,), by_group=named, by_topic=named, by_exception=named, by_hour=hours
    )

    whole = page(report)

    assert {tag for tag, _ in Elements(whole).found} == {tag for tag, _ in Elements(page(REPORT)).found}
    assert printable(nasty).replace("\ud800", "?") in Elements(whole).texts
    whole.encode()


def test_a_report_of_nothing_says_so() -> None:
    whole = page(DeadLetterReport(("billing",), NINE, NINE + HOUR))

    assert "There are no dead letters." in whole
    assert "consumer groups billing" in whole
    assert "dead since 2026-07-14 09:00" in whole


def test_what_letters_do_not_say_has_a_word() -> None:
    unsaid = (Count(None, 3),)
    cause = replace(
        CAUSE, topic=None, exception=None, error=None, example=None, fewest_attempts=None, most_attempts=None
    )
    report = replace(
        REPORT,
        causes=(cause,),
        by_topic=unsaid,
        by_exception=unsaid,
        by_attempts=unsaid,
        by_hour=(HourCount(NINE, None, 3),),
    )

    assert Elements(page(report)).texts.count(UNSAID) >= 5


def test_many_names_end_in_a_bar_for_the_others() -> None:
    topics = tuple(Count(f"topic-{number}", 100 - number) for number in range(MOST_BARS + 3))

    texts = Elements(page(replace(REPORT, by_topic=topics))).texts

    assert f"topic-{MOST_BARS - 1}" in texts
    assert f"topic-{MOST_BARS}" not in texts
    assert "3 others" in texts


def test_causes_that_are_not_told_are_counted() -> None:
    assert "... and 4 causes with fewer messages" in page(replace(REPORT, causes_found=5))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "dead.html"
    path.write_text("old")

    write_page(REPORT, path)

    assert path.read_text("utf-8") == page(REPORT)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ParameterInvalid, match=r"html = .*nowhere/dead.html") as refused:
        write_page(REPORT, tmp_path / "nowhere" / "dead.html")

    assert refused.value.name == "html"


# -- over time ------------------------------------------------------------------------------------


def test_hours_without_letters_have_an_empty_column() -> None:
    hours = [HourCount(NINE, "a", 1), HourCount(NINE, "b", 2), HourCount(NINE + 2 * HOUR, "c", 4)]

    columns = columns_of(hours, ["a"], has_rest=True)

    assert columns == [Column("07-14 09:00", (1, 2)), Column("07-14 10:00", (0, 0)), Column("07-14 11:00", (0, 4))]


@pytest.mark.parametrize("days", [1, 3, 10, 30, 100, 365, 4 * 365])
def test_a_long_time_has_longer_spans_that_lose_nothing(days: int) -> None:
    hours = [HourCount(NINE + number * HOUR, "a", 1) for number in range(0, days * 24, 5)]

    columns = columns_of(hours, ["a"], has_rest=False)

    assert len(columns) <= MOST_COLUMNS
    assert sum(column.values[0] for column in columns) == len(hours)


# -- the chart over time --------------------------------------------------------------------------


@pytest.mark.parametrize("series", [1, 6, 7, 9])
def test_exceptions_beyond_the_colours_are_drawn_as_the_rest(series: int) -> None:
    hours = tuple(HourCount(NINE, f"E{number}", 1) for number in range(series))
    by_exception = tuple(Count(f"E{number}", 1) for number in range(series))

    elements = Elements(page(replace(REPORT, by_hour=hours, by_exception=by_exception)))

    colours = {bar["class"] for bar in elements.all("rect")}
    assert colours == {f"series-{number + 1}" for number in range(min(series, 6))} | (
        {"series-rest"} if series > 6 else set()
    )
    assert ("others" in elements.texts) == (series > 6)


def test_columns_stand_on_each_other() -> None:
    top, [[low, high], empty] = stacked([Column("9:00", (1, 3)), Column("10:00", (0, 0))])

    assert top == 4
    assert (low.series, high.series) == (0, 1)
    assert (low.y + low.height, high.y + high.height) == (HEIGHT, low.y)
    assert high.height == pytest.approx(3 * low.height)
    assert low.x >= 0
    assert low.x + low.width <= WIDTH / 2
    assert empty == []


def test_deliveries_are_a_number_or_a_range() -> None:
    assert CAUSE.deliveries == "1 to 17"
    assert replace(CAUSE, fewest_attempts=17).deliveries == "17"
    assert replace(CAUSE, fewest_attempts=None, most_attempts=None).deliveries == ""
