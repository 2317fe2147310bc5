"""The pure parts of `do.py peers`: which measurements count, their results, and the printed table.

No peer is started.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.peers.__main__ import main
from benchmarks.peers.chart import chart
from benchmarks.peers.results import Measurement, Spread, summarise, until_quiet
from benchmarks.peers.rounds import Plan
from benchmarks.peers.sides import SIDES
from benchmarks.peers.stages import STAGES, Settings
from benchmarks.peers.table import shown, tables
from benchmarks.peers.workers.work import body, percentile


def measured(side: str, number: int, *, way: str = "", is_kept: bool = True, **figures: float) -> Measurement:
    return Measurement("produce", "1 thread", side, way, number, is_kept, {"foreign": 0.02, **figures})


def command_line() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    return app


def test_a_busy_measurement_is_repeated_until_it_is_quiet() -> None:
    found = iter([{"foreign": 0.5}, {"foreign": 0.11}, {"foreign": 0.1}, {"foreign": 0.0}])

    tried = until_quiet(lambda: next(found), most_foreign=0.1, tries=5)

    assert tried == [(False, {"foreign": 0.5}), (False, {"foreign": 0.11}), (True, {"foreign": 0.1})]


def test_a_machine_that_is_never_quiet_gives_nothing_to_keep() -> None:
    tried = until_quiet(lambda: {"foreign": 0.5}, most_foreign=0.1, tries=3)

    assert [is_kept for is_kept, _ in tried] == [False] * 3


def test_ratios_are_made_within_a_round_and_only_of_what_counts() -> None:
    rows = summarise(
        [
            measured("pgmqsql", 1, rate=200.0),
            measured("mqdb", 1, rate=9_999.0, is_kept=False),
            measured("mqdb", 1, rate=100.0),
            measured("mqdb", 2, rate=300.0),
            measured("pgmqsql", 2, rate=100.0),
            # mqdb was never quiet in this round.
            measured("mqdb", 3, rate=1.0, is_kept=False),
            measured("pgmqsql", 3, rate=400.0),
        ]
    )

    assert [(row.side, row.kept, row.discarded) for row in rows] == [("mqdb", 2, 2), ("pgmqsql", 3, 0)]
    assert rows[0].figures["rate"] == Spread(200.0, 100.0, 300.0)
    assert rows[1].figures["rate"] == Spread(200.0, 100.0, 400.0)
    assert rows[1].rate_ratio == Spread(1.75, 0.5, 3.0)
    assert rows[1].figures["disk"] is None


def test_ways_of_mqdb_are_compared_with_push() -> None:
    rows = summarise([measured("mqdb", 1, way="poll100", rate=50.0), measured("mqdb", 1, way="push", rate=100.0)])

    assert [(row.way, row.rate_ratio) for row in rows] == [
        ("push", Spread(1.0, 1.0, 1.0)),
        ("poll100", Spread(2.0, 2.0, 2.0)),
    ]


def test_a_side_without_any_quiet_round_has_a_row_without_figures() -> None:
    (row,) = summarise([measured("mqdb", 1, rate=1.0, is_kept=False)])

    assert (row.kept, row.discarded, row.figures["rate"], row.rate_ratio) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("spread", "text"),
    [(None, "-"), (Spread(1_234.4, 1_234.4, 1_234.4), "1,234"), (Spread(2_000.0, 1.0, 3_000.0), "2,000 (1-3,000)")],
)
def test_a_figure_is_shown_with_its_range(spread: Spread | None, text: str) -> None:
    assert shown(spread, 0) == text


def test_the_table_says_how_many_measurements_were_thrown_away() -> None:
    rows = summarise([measured("mqdb", 1, rate=1.0, is_kept=False), measured("mqdb", 1, rate=70.0)])
    console = Console(width=200)

    with console.capture() as capture:
        for table in tables(rows):
            console.print(table)

    assert "1 (-1)" in capture.get()
    assert "messages/s" in capture.get()
    assert "WAL" not in capture.get()


def test_the_chart_is_well_formed_and_has_a_bar_for_each_side() -> None:
    rows = summarise([measured("mqdb", 1, rate=70.0), measured("pgmqsql", 1, rate=90.0)])

    drawing = ElementTree.fromstring(chart(rows))

    assert len(drawing.findall(".//{*}rect")) == 2
    assert "pgmqsql" in {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}


def test_each_round_has_another_order_and_all_sides() -> None:
    plan = Plan(["produce"], list(SIDES.values()), Settings(), rounds=9, most_foreign=0.1, tries=1)

    orders = [tuple(side.name for _, number, side in plan.turns() if number == each) for each in range(1, 10)]

    assert all(sorted(order) == sorted(SIDES) for order in orders)
    assert len(set(orders)) > 1
    sends = [3 + side.is_java - side.speaks_grpc for side in SIDES.values()]
    assert plan.tasks() == 9 * sum(sends)


def test_sides_of_the_sdk_for_grpc_send_no_batches() -> None:
    for name in ("mqdb-grpc", "rocketmq-proxy"):
        tasks = STAGES["produce"](SIDES[name], Settings())

        assert [task.work for task in tasks] == ["1 thread", "16 threads", "64 under way"]


def test_every_stage_measures_mqdb() -> None:
    assert all(stage(SIDES["mqdb"], Settings()) for stage in STAGES.values())


def test_an_earlier_run_is_shown_and_drawn(tmp_path: Path) -> None:
    lines: list[Mapping[str, object]] = [{"machine": {}}]
    lines += [each.as_json() for each in (measured("mqdb", 1, rate=70.0), measured("pgqueuer", 1, rate=35.0))]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["--show", str(tmp_path / "run.jsonl"), "--chart", str(tmp_path / "chart.svg")]

    shown = CliRunner().invoke(command_line(), arguments)

    assert shown.exit_code == 0, shown.output
    assert "2.00" in shown.output
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")


def test_a_stage_or_side_that_does_not_exist_is_refused() -> None:
    for arguments in (["prodce"], ["--only", "mqdb,kafka"], ["--rates", "200,x"]):
        refused = CliRunner().invoke(command_line(), arguments)

        assert refused.exit_code == 2, refused.output


def test_a_body_has_200_bytes_and_percentiles_are_taken_from_the_values() -> None:
    assert len(body().encode()) == 200
    assert [percentile([1.0, 2.0, 3.0, 4.0], percent) for percent in (50, 99)] == [3.0, 4.0]
