"""The first test in tests/README.md passes, and fails for a different tag."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection

README = Path(__file__).parents[2] / "README.md"


def first_test(tag: str = "paid") -> Callable[[Connection], None]:
    """The test on the page, changed to send this tag."""
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Callable[[Connection], None]] = {}
    exec(code.replace('tag="paid"', f'tag="{tag}"'), names)
    return names["test_a_message_has_the_tag_of_its_sender"]


def test_it_passes(broker: Connection) -> None:
    first_test()(broker)


def test_it_can_fail(broker: Connection) -> None:
    with pytest.raises(AssertionError):
        first_test("open")(broker)
