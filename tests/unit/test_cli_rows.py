"""Rows: plain values, printed as tables for people and as JSON for programs."""

import io
import json
from datetime import UTC, datetime

import pytest
from rich.console import Console

from mqdb.cli.rows import Row, in_a_line, json_of, print_rows, table_of
from mqdb.cli.times import shown_time

NINE = datetime(2026, 7, 14, 9, 30, 5, 250_000, UTC)
ID = "0A0B0C0D1E2F00000000000000000001"
LETTER: Row = {
    "died": NINE,
    "message": ID,
    "topic": "orders",
    "tag": None,
    "keys": "order-17",
    "attempts": 17,
    "exception": "shop.errors.NoPriceForThisArticleError",
    "error": "no price for order-17 as the table of prices is being written",
    "redriven": None,
}


def printed(rows: list[Row], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table_of(rows))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_programs_get_switches_times_and_what_is_missing_as_json_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"paused": False, "next": NINE, "last": None, "sent": 3}

    print_rows([row], as_json=True, nothing="")

    assert json.loads(capsys.readouterr().out) == row | {"next": "2026-07-14T09:30:05.250000+00:00"}


def test_times_within_parts_of_an_object_are_json_too() -> None:
    assert json.loads(json_of({"queues": [{"updated": NINE}]})) == {"queues": [{"updated": NINE.isoformat()}]}


def test_people_get_yes_and_no_and_times_to_the_second(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"paused": False, "order": True, "last": NINE, "due": NINE}], as_json=False, nothing="")

    values = capsys.readouterr().out.splitlines()[-1]
    assert values.split() == ["no", "yes", *f"{shown_time(NINE)} {shown_time(NINE, 'milliseconds')}".split()]
    assert in_a_line({"order": True, "read_queues": 2}) == "order yes, read queues 2"


@pytest.mark.parametrize("width", [48, 60, 80, 100, 120, 160])
def test_an_id_and_the_words_of_headings_stay_whole_however_narrow_the_terminal(width: int) -> None:
    lines = printed([LETTER, LETTER], width)

    assert sum(ID in line for line in lines) == 2
    assert {"died", "message", "topic", "attempts", "exception", "error"} <= set(" ".join(lines).split())
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", ["message", "message_id", "transaction_id", "client_id", "log_pos", "position"])
def test_what_people_copy_does_not_fold(name: str) -> None:
    copied = 10**15 if name in ("log_pos", "position") else ID

    lines = printed([{name: None, "error": "x" * 200}, {name: copied, "error": "x" * 200}], 50)

    assert any(str(copied) in line.replace(",", "") for line in lines)


def test_a_table_folds_its_texts_first_and_its_times_between_date_and_time() -> None:
    assert len(printed([LETTER], 400)) == 3

    heading, _, *lines = printed([LETTER], 120)

    assert "exception" in heading
    assert 1 < len(lines) < 15
    date, time = (shown_time(NINE) or "").split()
    assert [line.split()[0] for line in lines[:2]] == [date, time]


def test_without_room_for_a_table_each_row_is_a_block_of_its_values() -> None:
    lines = printed([LETTER, LETTER | {"tag": "paid"}], 60)

    assert lines[1] == f"message    {ID}"
    assert [line for line in lines if line.startswith("tag")] == ["tag        paid"]
    assert "" in lines
