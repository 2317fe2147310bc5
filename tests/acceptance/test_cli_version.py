"""`mqdb --version` prints the versions of mqdb and of the brokers that answer, and never fails."""

from pathlib import Path

import pytest

from mqdb import __version__
from mqdb.cli import version
from mqdb.store.migrations import head
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database, query
from tests.fixtures.proxy import Proxy

OURS = f"mqdb {__version__}\nschema {head()}\n"


def test_without_a_broker_only_the_versions_of_this_mqdb_are_printed(tmp_path: Path) -> None:
    assert Place(tmp_path).done("--version") == OURS


def test_a_broker_has_a_line(database: Database, tmp_path: Path) -> None:
    server = query(database.dsn, "SHOW server_version")
    expected = f"{OURS}broker-a: schema {head()}, PostgreSQL {server}\n"

    assert Place(tmp_path, database.dsn).done("--version") == expected
    assert Place(tmp_path).done("--version", "--dsn", database.dsn) == expected
    assert Place(tmp_path).done("--dsn", database.dsn, "--version") == expected


def test_a_broker_with_another_schema_and_one_without_have_a_line_too(
    database: Database, second_empty_database: Database, tmp_path: Path
) -> None:
    query(database.dsn, "UPDATE mqdb.alembic_version SET version_num = '9999'")

    printed = Place(tmp_path, f"a={database.dsn};b={second_empty_database.dsn}").done("--version")

    server = query(database.dsn, "SHOW server_version")
    assert printed == f"{OURS}a: schema 9999, PostgreSQL {server}\nb: no schema, PostgreSQL {server}\n"


def test_a_refusing_and_a_hanging_broker_have_a_line_and_the_command_succeeds(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_PATIENCE_SECONDS", 1.0)
    proxy.freeze()

    printed = Place(tmp_path, f"a=postgresql://127.0.0.1:1/x;b={proxy.dsn}").done("--version")

    assert printed.startswith(f"{OURS}a: no broker at postgresql://127.0.0.1:1/x")
    assert printed.endswith("\nb: no answer within 1 s\n")


def test_an_invalid_setting_is_a_line(tmp_path: Path) -> None:
    assert Place(tmp_path, "bad=").done("--version").startswith(f"{OURS}no broker was contacted: setting dsn = ")
