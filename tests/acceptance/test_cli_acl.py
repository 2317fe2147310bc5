"""`mqdb acl`: rights of roles that do not own the broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from tests.fixtures.command_line import Place
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.postgres import OWNER, Database

SHOP = "the shop"


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    """A broker with a role that has no right."""
    superuser, role = database.connect_as_superuser(), sql.Identifier(SHOP)
    superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    yield Place(tmp_path, database.dsn)
    superuser.execute(sql.SQL("DROP OWNED BY {}").format(role))
    superuser.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_right_is_granted_shown_checked_and_taken_away(place: Place) -> None:
    grant = ("acl", "grant", SHOP, "--send", "orders", "--send")

    assert place.done(*grant, "o*") == f"{SHOP} may send to orders\n{SHOP} may send to o*\n"
    assert place.done(*grant, "x") == f"{SHOP} already could send to orders\n{SHOP} may send to x\n"
    listed = json_lines(place.done("acl", "list", "--topic", "orders", "--json"))
    assert [(each["role"], each["access"], each["topic"]) for each in listed] == [
        (SHOP, "SEND", "o*"),
        (SHOP, "SEND", "orders"),
    ]
    assert place.done("acl", "check", SHOP, "--send", "other") == f"{SHOP} may send to other by its right on o*\n"
    assert place.done("acl", "check", OWNER, "--send", "a") == f"{OWNER} may send to a as the owner of the broker\n"
    assert place.done("acl", "revoke", SHOP, "--send", "o*") == f"{SHOP} may not send to o* any more\n"
    denied = place.call("acl", "check", SHOP, "--send", "other")
    assert (denied.code, denied.text) == (1, "")
    assert f"role {SHOP!r} has no right SEND on TOPIC 'other'" in denied.errors
    assert place.done("acl", "revoke", SHOP, "--all").count("any more") == 2
    assert place.done("acl", "revoke", SHOP, "--all") == f"{SHOP} has no right\n"
    assert place.done("acl", "list") == "Nobody but the owner has a right.\n"


def test_rights_come_from_a_file(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(f'["{SHOP}"]\nsend = ["orders", "invoices-*"]\n')
    apply = ("acl", "apply", str(file))

    asked = place.call(*apply)
    assert (asked.code, "Nobody is there to confirm it; add --yes" in asked.errors) == (1, True)
    assert place.done("acl", "list") == "Nobody but the owner has a right.\n"
    changes = json_lines(place.done(*apply, "--yes", "--json"))
    assert [(each["topic"], each["change"]) for each in changes] == [("invoices-*", "granted"), ("orders", "granted")]
    assert place.done(*apply) == "Nothing to change.\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[shop", "Expected"),
        ('shop = "orders"', "role 'shop' needs a table with `send`, and nothing else"),
        ("[shop]\nread = []", "role 'shop' needs a table with `send`, and nothing else"),
        ("[shop]\nsend = [1]", "send of role 'shop' is no list of texts"),
        ('[nobody]\nsend = ["orders"]', "is no role of this server"),
    ],
)
def test_a_file_that_says_nonsense_changes_nothing(place: Place, tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(text)

    refused = place.call("acl", "apply", str(file), "--yes")

    assert refused.code == 1
    assert sentence in refused.errors
    assert place.done("acl", "list") == "Nobody but the owner has a right.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("grant", "nobody", "--send", "orders"), "is no role of this server; CREATE ROLE makes one"),
        (("grant", SHOP, "--send", "%RETRY%g"), "belongs to the broker, a group or replies; no right covers it"),
        (("revoke", SHOP), "name the rights with --send, or say --all"),
        (("revoke", SHOP, "--all", "--send", "orders"), "name the rights with --send, or say --all"),
        (("revoke", SHOP, "--send", "orders"), "has no such right; see: mqdb acl list"),
    ],
)
def test_what_cannot_be_done_is_said(place: Place, arguments: tuple[str, ...], sentence: str) -> None:
    refused = place.call("acl", *arguments)

    assert (refused.code, refused.text) == (1, "")
    assert sentence in refused.errors
