"""The kind of server that a connection requires, by the parts of a DSN."""

from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from mqdb.store.engine import create_engine, target_of
from mqdb.store.server_choice import ServerChoice, ServerRole, hosts_of


def attempts(dsn: str, server: ServerRole = ServerRole.PRIMARY) -> list[dict[str, Any]]:
    return ServerChoice(conninfo_to_dict(dsn), "target", server, {"connect_timeout": 5}).arguments()


@pytest.mark.parametrize(
    ("dsn", "server", "asked"),
    [
        ("postgresql://one/db", ServerRole.PRIMARY, ["read-write"]),
        ("postgresql://one,two/db", ServerRole.PRIMARY, ["read-write"]),
        ("postgresql://one/db", ServerRole.PRIMARY_FIRST, ["read-write", None]),
        ("postgresql://one/db", ServerRole.ANY, [None]),
        *(
            (f"postgresql://one/db?target_session_attrs={given}", server, [None])
            for given in ("any", "standby", "primary")
            for server in ServerRole
        ),
    ],
)
def test_a_primary_is_asked_for_unless_the_dsn_says_what(dsn: str, server: ServerRole, asked: list[str | None]) -> None:
    assert [attempt.get("target_session_attrs") for attempt in attempts(dsn, server)] == asked


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://one/db", []),
        ("postgresql:///db", []),
        ("postgresql://one,two/db", [("one", "5432"), ("two", "5432")]),
        ("postgresql://one:1,two/db", [("one", "1"), ("two", "5432")]),
        ("host=one,two port=7 dbname=db", [("one", "7"), ("two", "7")]),
        ("host=one,two port=7,8,9 dbname=db", []),
        ("host=/run/a,two port=7,8 dbname=db", [("/run/a", "7"), ("two", "8")]),
    ],
)
def test_each_host_has_its_port(dsn: str, hosts: list[tuple[str, str]]) -> None:
    assert [(each.host, each.port) for each in hosts_of(conninfo_to_dict(dsn))] == hosts


def test_hosts_that_the_dsn_has_shuffled_stay_as_they_are() -> None:
    [attempt] = attempts("postgresql://one,two/db?load_balance_hosts=random")
    assert "host" not in attempt


def test_an_error_names_each_host_with_its_port() -> None:
    engine = create_engine("postgresql://user:secret@one:1,two:2,three/db")
    assert target_of(engine) == "one:1,two:2,three:5432/db"
