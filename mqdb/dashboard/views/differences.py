"""The difference between two bodies, line by line. JSON is first formatted with a line for each value."""

from collections.abc import Iterator
from difflib import unified_diff
from typing import NamedTuple

from mqdb.dashboard.views.json_text import JsonNode, json_tree


class DifferenceLine(NamedTuple):
    """A line of a difference."""

    sign: str
    """`+` for a line of the new body, `-` for a line of the old body, a blank for both, `@` for lines left out."""
    text: str


def difference(before: str, after: str) -> list[DifferenceLine]:
    """The changed lines with two lines of context around each change; [] if there is no difference."""
    old, new = json_tree(before), json_tree(after)
    if old is not None and new is not None:
        lines = list(_lines(old, 0)), list(_lines(new, 0))
    else:
        lines = before.splitlines(), after.splitlines()
    # The first two lines are the names of files.
    found = list(unified_diff(*lines, lineterm="", n=2))[2:]
    return [DifferenceLine("@", "…") if line.startswith("@@") else DifferenceLine(line[0], line[1:]) for line in found]


def _lines(node: JsonNode, depth: int) -> Iterator[str]:
    margin = "  " * depth + (f"{node.label}: " if node.label is not None else "")
    if node.text is not None or not node.children:
        yield margin + (node.brackets if node.text is None else node.text)
        return
    yield margin + node.brackets[0]
    for child in node.children:
        yield from _lines(child, depth + 1)
    yield "  " * depth + node.brackets[1]
