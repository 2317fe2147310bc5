"""`mqdb_client.testing` as a user has it: a user's test file, run in a separate pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

STRANGER = """
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import psycopg
import pytest

from mqdb_client import Message, Producer, errors


def test_a_delayed_message_comes_when_the_clock_has_moved(mqdb_broker, mqdb_topics):
    reminders = mqdb_topics.topic("reminders")
    with Producer("shop", mqdb_broker.dsn) as producer:
        producer.send(Message(reminders, "pay", delay=timedelta(hours=3)))
    with mqdb_broker.admin.messages.reading(reminders) as reader:
        reader.dispatch()
        assert list(reader) == []
        mqdb_broker.move_clock(timedelta(hours=3))
        while not (messages := reader.read()):
            pass
    assert [message.body for message in messages] == [b"pay"]
    with pytest.raises(ValueError, match="cannot go back"):
        mqdb_broker.move_clock(-timedelta(hours=3))
    with pytest.raises(ValueError, match="the limit is 365,000 days"):
        mqdb_broker.move_clock(timedelta(days=365_000))
    with pytest.raises(errors.ParameterInvalid, match="by = 5: must be a timedelta"):
        mqdb_broker.move_clock(5)


def test_who_waits_in_vain_is_told_where_the_group_stands(mqdb_broker, mqdb_topics):
    orders, billing = mqdb_topics.topic("orders"), mqdb_topics.group("billing")
    with Producer("shop", mqdb_broker.dsn) as producer:
        producer.send(Message(orders, "one"))
    told = r"group 'billing-.*' has not consumed topic 'orders-.*' in 0.1 s; queue 0: 0 of 1"
    with pytest.raises(AssertionError, match=told):
        mqdb_broker.wait_until_consumed(billing, orders, timeout=timedelta(seconds=0.1))
    with pytest.raises(errors.ParameterInvalid, match="timeout = 0.1: must be a timedelta"):
        mqdb_broker.wait_until_consumed(billing, orders, timeout=0.1)


def test_what_has_no_offset_yet_is_waited_for(mqdb_broker, mqdb_topics):
    orders, billing = mqdb_topics.topic("orders"), mqdb_topics.group("billing")
    dsn = mqdb_broker.dsn
    with psycopg.connect(dsn) as other, Producer("shop", dsn) as producer, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE")
        producer.send(Message(orders, "one"))
        with pytest.raises(AssertionError, match="in 0.1 s; another session holds the lock of dispatch"):
            mqdb_broker.wait_until_consumed(billing, orders, timedelta(seconds=0.1))
        waiting = pool.submit(mqdb_broker.wait_until_consumed, billing, orders, timedelta(seconds=2))
        try:
            assert not wait([waiting], 0.3).done
        finally:
            other.rollback()
        with pytest.raises(AssertionError, match="in 2 s; queue 0: 0 of 1"):
            waiting.result()


seen = []


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_topics_of_its_own(mqdb_broker, mqdb_topics, number):
    there = [config.name for config in mqdb_broker.admin.topics.list()]
    assert not set(seen) & set(there)
    seen.append(mqdb_topics.topic("orders"))
    assert len(set(seen)) == number
"""


@pytest.mark.long  # the examples are tested with the plugin, too
def test_a_stranger_tests_with_it(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", (DOCS / "testing.md").read_text(), re.DOTALL)
    (tmp_path / "conftest.py").write_text(example[0])
    (tmp_path / "test_page.py").write_text(example[1])
    (tmp_path / "test_stranger.py").write_text(STRANGER)
    files = dict(
        re.findall(r"```python\n# ([\w/.]+)[^\n]*\n(.*?)```", (DOCS / "applications.md").read_text(), re.DOTALL)
    )
    for name in ("shop/tasks.py", "tests/test_tasks.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(files[name])
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MQDB_", "PYTEST"))}
    environ |= {name: os.environ[name] for name in ("MQDB_PG_BIN", "MQDB_PG_USER") if name in os.environ}

    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path, timeout=110, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout
