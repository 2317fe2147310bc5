"""Runs the notebook cell by cell, as a kernel does."""

import json
from pathlib import Path
from typing import Any

import pytest

from mqdb_client import Message, Producer
from mqdb_client.testing import TestBroker, TestTopics

NOTEBOOK = Path(__file__).with_name("watch.ipynb")


def test_the_notebook_shows_what_stands_in_a_topic(
    mqdb_broker: TestBroker,
    mqdb_topics: TestTopics,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = mqdb_topics.topic("orders")
    monkeypatch.setenv("MQDB_DSN", mqdb_broker.dsn)
    monkeypatch.setenv("TOPIC", topic)
    with Producer("shop") as producer:
        producer.send_batch([Message(topic, f"order {number}", tag="placed") for number in range(3)])
    with mqdb_broker.admin.messages.reading(topic) as reader:
        reader.dispatch()

    names: dict[str, Any] = {}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)

    printed = capsys.readouterr().out
    assert "3 messages, queues: 1" in printed
    assert [message.body for message in names["seen"]] == [b"order 0", b"order 1", b"order 2"]
    assert "b'order 2'" in printed
