"""A database made by a never-released version of mqdb is refused by every program; the refusal names the remedy."""

import shutil
from pathlib import Path

import pytest

from mqdb.errors import SchemaUnreleased
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store import migrations
from mqdb_client import Producer
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database, query

#: The number of today's revision with the fingerprint of other texts, and one of the revisions that became this one.
UNRELEASED = ("0100.00000000", "0015")


@pytest.fixture(params=UNRELEASED)
def unreleased(request: pytest.FixtureRequest, database: Database) -> Database:
    """A database whose fingerprint differs from that of this mqdb."""
    query(database.dsn, f"UPDATE mqdb.alembic_version SET version_num = '{request.param}'")
    return database


def revision(database: Database) -> object:
    return query(database.dsn, "SELECT version_num FROM mqdb.alembic_version")


def test_a_producer_refuses_it_and_says_what_to_do(unreleased: Database) -> None:
    producer = Producer("senders", settings=load_settings(dsn=unreleased.dsn))

    with pytest.raises(SchemaUnreleased, match="recreate it") as refused:
        producer.start()

    assert (refused.value.found, refused.value.needed) == (revision(unreleased), migrations.head())


@pytest.mark.parametrize("command", [("topic", "list"), ("send", "orders", "x"), ("migrate",)], ids=" ".join)
def test_the_command_line_refuses_it_and_says_what_to_do(
    unreleased: Database, tmp_path: Path, command: tuple[str, ...]
) -> None:
    before = revision(unreleased)

    refused = Place(tmp_path, unreleased.dsn).call(*command)

    assert (refused.code, refused.text) == (1, "")
    assert f"was made by an unreleased version ({before}, this mqdb needs {migrations.head()}); recreate it" in (
        refused.errors
    )
    assert revision(unreleased) == before


def test_a_server_refuses_it(unreleased: Database) -> None:
    before = revision(unreleased)

    with pytest.raises(SchemaUnreleased):
        Server(load_settings(dsn=unreleased.dsn)).start()

    assert revision(unreleased) == before


def test_each_text_of_the_schema_counts_for_the_fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = migrations._fingerprint()
    texts = tmp_path / "sql"
    shutil.copytree(migrations._SQL, texts)
    monkeypatch.setattr(migrations, "_SQL", texts)
    assert migrations._fingerprint() == before

    for path in sorted(texts.rglob("*.sql")):
        text = path.read_text(encoding="utf-8")
        path.write_text(text + " ", encoding="utf-8")
        assert migrations._fingerprint() != before, path.name
        path.write_text(text, encoding="utf-8")
