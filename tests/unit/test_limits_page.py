"""docs/limits.md states the same limits as the code."""

from pathlib import Path

import pytest

from mqdb.broker.consumers.pop import MAX_POPPED
from mqdb.common import compression, delay_level, group, message, property, topic
from mqdb.selector import check, parser, subscription
from mqdb.service import cron_text
from mqdb_client.producer.sends import batch

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        ("body", message.MAX_BODY_BYTES),
        ("body that a consumer decompresses", compression.MAX_PLAIN_BYTES),
        ("all properties, encoded, with tag and keys", property.MAX_PROPERTIES_BYTES),
        ("batch of `send_batch`", batch.MAX_BATCH_BYTES),
        ("name of a topic", topic.MAX_TOPIC_LENGTH),
        ("name of a group", group.MAX_GROUP_LENGTH),
        ("SQL92 expression", subscription.MAX_EXPRESSION_LENGTH),
        ("SQL92 expression", check.MAX_PARTS),
        ("SQL92 expression", parser.MAX_NESTING),
        ("cron text", cron_text.MAX_CRON_LENGTH),
        ("queues of a topic", topic.MAX_QUEUE_NUMS),
        ("queues of a topic", topic.MAX_QUEUES_BY_RIGHT),
        ("messages of a pop", MAX_POPPED),
        ("delay levels", len(delay_level.DEFAULT_DELAY_LEVELS.split())),
        ("delay levels", delay_level.MAX_LEVELS),
    ],
)
def test_the_page_names_a_limit(row: str, limit: int) -> None:
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {row} |")]

    assert f"{limit:,}" in line.replace(";", " ").replace(".", " ").split(" | ", 1)[1]
