"""The output of `mqdb spark dlq-report | stats` for counts from Spark."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mqdb.cli.spark.reports import print_report, stats_row
from mqdb.cli.times import shown_time
from mqdb.pipeline.jobs.dead_letter_report import Cause, Count, DeadLetterReport

NINE = datetime(2026, 7, 14, 9, tzinfo=UTC)
CAUSE = Cause(
    group="billing",
    topic="orders",
    exception="shop.NoPrice",
    error="no price for order-<n>",
    messages=1_234,
    fewest_attempts=1,
    most_attempts=17,
    first_died=NINE,
    last_died=NINE + timedelta(hours=1),
    example="no price for order-17",
    example_id="0A",
)
REPORT = DeadLetterReport(
    None, None, NINE, causes_found=2, causes=(CAUSE, replace(CAUSE, messages=1)), by_group=(Count("billing", 1_235),)
)


def test_people_get_a_table_and_what_it_adds_up_to(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, limit=2, as_json=False)

    *table, total = capsys.readouterr().out.splitlines()
    assert "1,234" in "".join(table)
    assert "1 to 17" in "".join(table)
    assert total == "1,235 dead letters of 1 group, 2 causes"


def test_causes_beyond_the_limit_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, limit=1, as_json=False)

    assert capsys.readouterr().out.endswith("2 causes, 1 of them not shown\n")


def test_no_control_character_of_a_stranger_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    nasty = replace(CAUSE, topic="\x1b[31mt", exception="\x07e", error="a\x9bb")

    print_report(replace(REPORT, causes=(nasty,)), limit=1, as_json=False)

    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(printed)
    assert r"\x1b[31mt" in printed


def test_programs_get_a_json_object_for_each_cause(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, limit=2, as_json=True)

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["messages"], second["messages"]) == (1_234, 1)
    assert (first["error"], first["example"]) == ("no price for order-<n>", "no price for order-17")
    assert datetime.fromisoformat(first["first_died"]) == NINE


def test_nothing_dead_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(DeadLetterReport(None, None, NINE), limit=20, as_json=False)

    assert capsys.readouterr().out == "there are no dead letters\n"


def test_hours_are_shown_with_their_zone_and_milliseconds_to_the_tenth() -> None:
    row = {"topic": "orders", "tag": None, "hour": NINE, "messages": 3, "p50_dispatch_ms": 4.25001}

    assert stats_row(row) == row | {"hour": shown_time(NINE, "minutes"), "p50_dispatch_ms": 4.3}
