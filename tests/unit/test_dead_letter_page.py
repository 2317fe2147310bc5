"""The page of a report is one file that shows what strangers have sent, and is harmed by none of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mqdb.errors import ParameterInvalid
from mqdb.pipeline.charts import BARS_WIDTH, Bar, Column, horizontal_bars, scale, shortened, stacked_columns
from mqdb.pipeline.dead_letter_page import MOST_BARS, MOST_COLUMNS, UNSAID, columns_of, deliveries, page, write_page
from mqdb.pipeline.dead_letter_report import Cause, Count, DeadLetterReport, HourCount
from mqdb.pipeline.markup import Markup, element

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
    """What a page consists of; raises AssertionError where an element is not closed."""

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


def test_each_chart_has_a_title_and_a_description() -> None:
    elements = Elements(page(REPORT))

    charts = elements.all("svg")
    ids = {attributes["id"] for _, attributes in elements.found if "id" in attributes}
    assert len(charts) == 5
    assert all(chart["role"] == "img" for chart in charts)
    assert all(set((chart["aria-labelledby"] or "").split()) <= ids for chart in charts)


@pytest.mark.parametrize("nasty", ["<script>alert(1)</script>", "\"><b>'&amp;", "]]>", "a\x00b\x1b[31m\ud800"])
def test_what_strangers_sent_is_text_and_nothing_else(nasty: str) -> None:
    cause = replace(CAUSE, consumer_group=nasty, topic=nasty, exception=nasty, error=nasty, example=nasty + "1")
    named = (Count(nasty, 3),)
    hours = (HourCount(NINE, nasty, 3),)
    report = replace(
        REPORT, groups=(nasty,), causes=(cause,), by_group=named, by_topic=named, by_exception=named, by_hour=hours
    )

    whole = page(report)

    assert {tag for tag, _ in Elements(whole).found} == {tag for tag, _ in Elements(page(REPORT)).found}
    assert (
        nasty.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd") in Elements(whole).texts
    )
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


# -- charts and markup ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, (1, 1)), (1, (1, 1)), (5, (1, 5)), (6, (2, 6)), (50, (10, 50)), (51, (20, 60)), (7_001, (2_000, 8_000))],
)
def test_the_scale_has_round_steps_up_to_the_highest_value(most: int, expected: tuple[int, int]) -> None:
    assert scale(most) == expected


def test_bars_are_as_long_as_their_values_and_stay_inside() -> None:
    drawn = Elements(horizontal_bars("chart", "Things", [Bar("one", 100), Bar("two", 50), Bar("none", 0)]))

    ends = [float(bar["x"] or 0) + float(bar["width"] or 0) for bar in drawn.all("rect")]
    widths = [float(bar["width"] or 0) for bar in drawn.all("rect")]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert max(ends) < BARS_WIDTH
    assert {"one: 100", "two: 50"} <= set(drawn.texts)


def test_columns_stand_on_each_other() -> None:
    drawn = Elements(stacked_columns("chart", "Things", ["a", "b"], [Column("9:00", (1, 3)), Column("10:00", (0, 0))]))

    low, high = (bar for bar in drawn.all("rect") if bar["class"] in ("series-1", "series-2") and bar["width"] != "12")
    assert float(high["y"] or 0) + float(high["height"] or 0) == pytest.approx(float(low["y"] or 0))
    assert float(high["height"] or 0) == pytest.approx(3 * float(low["height"] or 0))
    assert "9:00: 4\na: 1\nb: 3" in drawn.texts


def test_a_long_label_keeps_both_ends() -> None:
    assert shortened("short", 100) == "short"
    assert shortened("a.very.long.module.SomeError", 120) == "a.very.…meError"


def test_markup_is_escaped_once() -> None:
    inner = element("b", "1 < 2 & 'x'")

    assert inner == "<b>1 &lt; 2 &amp; &#x27;x&#x27;</b>"
    assert element("p", inner, Markup("<br>"), title='"') == f'<p title="&quot;">{inner}<br></p>'
    assert element("rect", stroke_width=2, class_=None) == '<rect stroke-width="2"/>'


def test_deliveries_are_a_number_or_a_range() -> None:
    assert deliveries(CAUSE) == "1 to 17"
    assert deliveries(replace(CAUSE, fewest_attempts=17)) == "17"
    assert deliveries(replace(CAUSE, fewest_attempts=None, most_attempts=None)) == ""
