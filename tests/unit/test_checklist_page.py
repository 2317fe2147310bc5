"""docs/checklist.md agrees with the tests that name its rows."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "checklist.md"

#: `test_row_53_...`, `test_rows_12_52_...`, "row 53", "rows 1 to 11 and 13".
NAMES = re.compile(r"def test_rows?((?:_\d+)+)|\b[Rr]ows? ((?:\d+(?:, | and | to )?)+)(?=[^\n]*hecklist|\b)")


def rows_of(path: Path) -> set[int]:
    """The checklist rows that a test file names."""
    text = path.read_text(encoding="utf-8")
    found: set[int] = set()
    for in_name, in_text in NAMES.findall(text if "hecklist" in text else ""):
        found.update(int(number) for number in re.findall(r"\d+", in_name))
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", in_text):
            found.update(range(int(first), int(last or first) + 1))
    return found


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    rows = [int(row) for row in re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
    files = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    named = set().union(*map(rows_of, files))

    assert rows == list(range(1, 76))
    assert named == set(rows)
