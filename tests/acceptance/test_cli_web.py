"""`mqdb web` and the dashboard of `mqdb serve` as processes: the links that they print, and how they exit."""

import http.client
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.fixtures.command_line import Place, Running, assert_refused
from tests.fixtures.postgres import Database


class Followed(NamedTuple):
    """The response to a link."""

    status: int
    cookie: str


def follow(link: str) -> Followed:
    """Open a link as a browser does, but without following the redirect."""
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return Followed(answer.status, answer.getheader("Set-Cookie") or "")
    finally:
        connection.close()


def next_link(process: Running) -> str:
    """The next link that the process prints."""
    return process.line_with("http://127.0.0.1").partition("open")[2].strip()


@pytest.mark.parametrize("command", [("web", "--http", "127.0.0.1:0"), ("serve",)])
def test_the_link_that_is_printed_logs_in_and_a_new_one_follows(
    tmp_path: Path, database: Database, command: tuple[str, ...]
) -> None:
    with Place(tmp_path, database.dsn).running(*command, MQDB_HTTP="127.0.0.1:0") as process:
        process.line_with("Ctrl-C")
        first = next_link(process)
        assert follow(first).status == 303
        assert follow(first).status == 403
        second = next_link(process)
        answer = follow(second)
        code, errors = process.interrupt()

    assert answer.status == 303
    assert "HttpOnly" in answer.cookie
    assert (code, "Traceback" in errors) == (0, False)


def test_with_a_password_the_link_has_no_token(tmp_path: Path, database: Database) -> None:
    environment = {"MQDB_WEB_PASSWORD": "secret", "MQDB_HTTP": "127.0.0.1:0"}
    with Place(tmp_path, database.dsn).running("web", "--read-only", **environment) as process:
        link = next_link(process)
        answer = follow(link)

    assert link.endswith("/login")
    assert answer.status == 200


def test_an_open_address_needs_a_password(tmp_path: Path, database: Database) -> None:
    refused = Place(tmp_path, database.dsn).call("web", "--http", "0.0.0.0:0")

    assert_refused(refused, "set web_password, or use 127.0.0.1")
