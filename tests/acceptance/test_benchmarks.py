"""`python3 do.py bench`: filter, schedule and spark as processes. The tests do not assert any speed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_bench import assert_measured, figures_of, only
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, module="benchmarks.bench")


def bench(place: Place, *arguments: str) -> dict[str, Any]:
    outcome = place.run(*arguments, "--json")
    assert (outcome.code, outcome.errors) == (0, "")
    report: dict[str, Any] = json.loads(outcome.text)
    return report


def test_help_lists_all_benchmarks(place: Place) -> None:
    outcome = place.run("--help")

    assert outcome.code == 0
    for name in ("produce", "consume", "latency", "dispatch", "filter", "schedule", "grow", "spark"):
        assert f" {name} " in outcome.text


@pytest.mark.long
def test_filter_holds_each_filter_against_pulls_of_all(place: Place, database: Database) -> None:
    given = ("filter", "--messages", "8000", "--rounds", "1", "--dsn", database.dsn)

    # The only message of a queue with the rare tag is its last: whoever is to count one has to read all before it.
    rare = figures_of(bench(place, *given, *only("tag-1000"), "-T", "2.5"))
    names = ["tag-2", "tag-none", "sql-2", "sql-everyday"]
    others = figures_of(bench(place, *given, *only(*names), "-T", "0.1"))

    assert [*rare, *others] == ["tag-1000", *names]
    for figure in (*rare.values(), *others.values()):
        assert_measured(figure, rounds=1)


@pytest.mark.long
def test_schedule_tells_how_late_messages_come_and_what_a_round_without_work_costs(
    place: Place, database: Database
) -> None:
    few = ("--waiting", "100", "--rate", "100", "-T", "0.2", "--rounds", "1")
    report = bench(place, "schedule", *few, "--dsn", database.dsn)

    figures = figures_of(report)
    delivered, idle, waited = ["levels", "timers", "both"], ["idle-levels", "idle-timers"], ["wait-level", "wait-timer"]
    assert list(figures) == [*delivered, *idle, *waited]
    for figure in figures.values():
        assert_measured(figure, rounds=1)
    for name in delivered:
        # Nothing comes early.
        assert 0 <= figures[name]["measured"]["details"]["min_ms"] <= figures[name]["measured"]["details"]["p99_ms"]
    for name in waited:
        assert figures[name]["measured"]["details"]["min_ms"] >= 1_000
