"""The site's reference lists all public names."""

import inspect
import re

import pytest

import mqdb_client
from mqdb import errors
from mqdb.settings import Settings
from mqdb_client import LitePullConsumer, Producer, PushConsumer, SimpleConsumer, TransactionProducer, aio
from website import reference


def test_each_public_name_of_the_client_is_on_one_page() -> None:
    pages = {page: reference.api(page) for page in reference.PAGES}
    for name in mqdb_client.__all__:
        if name != "errors":
            assert sum(f".{name}\n" in text for page, text in pages.items() if page != "aio") == 1, name
    assert all(f".{name}\n" in pages["aio"] for name in aio.__all__)


def test_each_command_has_its_help_and_options() -> None:
    page = reference.commands()
    for command in ("serve", "send", "topic create", "dlq redrive", "group offset reset", "spark to-table", "worker"):
        assert f"\n## mqdb {command}\n" in page
    assert "`--dry-run`" in page
    sections = page.split("\n## ")[1:]
    assert len(sections) > 60
    assert [section.splitlines()[0] for section in sections if len(section.splitlines()) < 6] == []


def test_each_setting_has_a_default_and_a_text() -> None:
    rows = reference.setting_rows()
    assert rows.keys() == Settings.model_fields.keys()
    assert [name for name, (default, text) in rows.items() if not default or not text] == []


def test_each_error_has_a_meaning() -> None:
    classes = reference.error_classes()
    assert errors.TopicNotFound in classes
    page = reference.errors_page()
    assert [each.__name__ for each in classes if f"\n## {each.__name__}\n\n\n" in page] == []


def test_each_table_and_view_has_its_comment() -> None:
    page = reference.tables_page()
    for name in ("message", "dlq", "consumer_lag", "topic", "commit_log", "sink_batch"):
        assert f"\n### {name}\n" in page
    assert "`send(" in page


CLIENTS = [Producer, TransactionProducer, PushConsumer, LitePullConsumer, SimpleConsumer, aio.AsyncPushConsumer]


@pytest.mark.parametrize("client", CLIENTS)
def test_help_has_the_text_of_each_option(client: type) -> None:
    options = inspect.signature(client).parameters
    text = inspect.getdoc(inspect.getattr_static(client, "__init__")) or ""
    described = set(re.findall(r"^    (\w+): \S.*\n        [A-Z].{10}", text, re.MULTILINE))
    assert options.keys() - described == set()
    assert "pull_batch_size: a whole number from 1 to 1,024; default " in text or "pull_batch_size" not in options
