"""The drawings of the documentation are those that `website.diagrams` makes."""

from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from website import diagrams

PAGE = diagrams.IMAGES.parent / "how-it-works.md"


@pytest.mark.parametrize("draw", diagrams.DRAWINGS, ids=lambda draw: draw.__name__)
def test_a_drawing_is_as_its_script_makes_it(draw: Callable[[], diagrams.Drawing]) -> None:
    stored = diagrams.path_of(draw).read_text(encoding="utf-8")

    assert stored == draw().svg(), "run python -m website.diagrams"
    assert ElementTree.fromstring(stored).get("aria-label") == draw().title
    assert f"]({diagrams.path_of(draw).relative_to(PAGE.parent)})" in PAGE.read_text(encoding="utf-8")
