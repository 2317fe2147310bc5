"""Every option in docs/spark-from-kafka.md is accepted by mqdb, or is a Kafka option that mqdb ignores."""

import re
from pathlib import Path

import pytest

from mqdb.pipeline.kafka_options import is_of_kafka
from mqdb.pipeline.read import source_options
from mqdb.pipeline.write import sink_options

PAGE = (Path(__file__).parents[2] / "docs" / "spark-from-kafka.md").read_text()
#: Kafka's sink has it; mqdb's needs none.
_NOT_NEEDED = {"includeHeaders"}


@pytest.mark.parametrize(
    ("section", "known"),
    [("Options of reads", {*source_options.NAMES}), ("Options of writes", {*sink_options.NAMES, *_NOT_NEEDED})],
)
def test_each_option_is_taken_or_ignored(section: str, known: set[str]) -> None:
    table = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([A-Za-z.*]+)`", row[0])]
    assert len(names) >= len(rows) > 2
    for name in names:
        assert is_of_kafka(name) if name.endswith("*") else name in known or is_of_kafka(name), name
