"""`mqdb acl`: rights of roles that do not own the broker."""

from pathlib import Path

import pytest
from psycopg import sql

from tests.fixtures.command_line import Place
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.postgres import KNOW_ITSELF, OWNER, Database, with_parts
from tests.fixtures.roles import PASSWORD, MakeRole

SHOP = "the shop"


@pytest.fixture
def place(database: Database, role: MakeRole, tmp_path: Path) -> Place:
    """A broker with a role that has no rights."""
    role(SHOP)
    database.connect().execute(KNOW_ITSELF)
    return Place(tmp_path, database.dsn)


def test_a_right_is_granted_shown_checked_and_taken_away(place: Place) -> None:
    grant = ("acl", "grant", SHOP, "--send", "orders", "--send")

    assert place.done(*grant, "o*") == f"{SHOP} may send to orders\n{SHOP} may send to o*\n"
    assert place.done(*grant, "x") == f"{SHOP} already could send to orders\n{SHOP} may send to x\n"
    listed = json_lines(place.done("acl", "list", "--topic", "orders", "--json"))
    assert [(each["role"], each["access"], each["type"], each["resource"]) for each in listed] == [
        (SHOP, "SEND", "TOPIC", "o*"),
        (SHOP, "SEND", "TOPIC", "orders"),
    ]
    assert place.done("acl", "check", SHOP, "--send", "other") == f"{SHOP} may send to other by its right on o*\n"
    assert place.done("acl", "check", OWNER, "--send", "a") == f"{OWNER} may send to a as the owner of the broker\n"
    assert place.done("acl", "revoke", SHOP, "--send", "o*") == f"{SHOP} may not send to o* any more\n"
    denied = place.call("acl", "check", SHOP, "--send", "other")
    assert (denied.code, denied.text) == (1, "")
    assert f"{SHOP!r} has no right SEND on TOPIC 'other'" in denied.errors
    assert place.done("acl", "revoke", SHOP, "--all").count("any more") == 2
    assert place.done("acl", "revoke", SHOP, "--all") == f"{SHOP} has no right\n"
    assert place.done("acl", "list") == "No role except the owner has any right.\n"


def test_a_reader_needs_its_topics_and_its_group(place: Place) -> None:
    said = place.done("acl", "grant", SHOP, "--read", "orders", "--group", "billing")

    assert said == f"{SHOP} may read orders\n{SHOP} may be a member of billing\n"
    checked = place.done("acl", "check", SHOP, "--read", "orders", "--group", "billing")
    assert checked == (
        f"{SHOP} may read orders by its right on orders\n{SHOP} may be a member of billing by its right on billing\n"
    )
    assert len(json_lines(place.done("acl", "list", "--group", "billing", "--json"))) == 1
    assert "READ on GROUP 'payroll'" in place.call("acl", "check", SHOP, "--group", "payroll").errors


def test_operators_and_administrators_have_options_of_their_own(place: Place, tmp_path: Path) -> None:
    named = ("--operate", "o*", "--operate-group", "billing", "--admin", "shop-*", "--admin-group", "shop-*")

    assert place.done("acl", "grant", SHOP, *named) == (
        f"{SHOP} may operate topic o*\n{SHOP} may operate group billing\n"
        f"{SHOP} may administer topic shop-*\n{SHOP} may administer group shop-*\n"
    )
    asked = ("--operate", "orders", "--admin", "shop-1", "--admin-group", "shop-2")
    assert place.done("acl", "check", SHOP, *asked) == (
        f"{SHOP} may operate topic orders by its right on o*\n"
        f"{SHOP} may administer topic shop-1 by its right on shop-*\n"
        f"{SHOP} may administer group shop-2 by its right on shop-*\n"
    )
    assert (
        "has no right OPERATE on GROUP 'payroll'"
        in place.call("acl", "check", SHOP, "--operate-group", "payroll").errors
    )
    listed = json_lines(place.done("acl", "list", "--group", "shop-2", "--json"))
    assert [(each["access"], each["type"], each["resource"]) for each in listed] == [("ADMIN", "GROUP", "shop-*")]
    file = tmp_path / "rights.toml"
    file.write_text(f'["{SHOP}"]\noperate_group = ["billing"]\nadmin = ["shop-*"]\n')
    changes = json_lines(place.done("acl", "apply", str(file), "--yes", "--json"))
    assert [(each["access"], each["type"], each["change"]) for each in changes] == [
        ("ADMIN", "GROUP", "taken away"),
        ("OPERATE", "TOPIC", "taken away"),
    ]
    revoked = place.done("acl", "revoke", SHOP, "--operate-group", "billing", "--admin", "shop-*")
    assert revoked.count("any more") == 2


def test_a_namespace_and_a_principal_that_is_no_role_are_said_with_the_first_right(place: Place) -> None:
    grant = ("acl", "grant", SHOP, "--send", "orders", "--group", "billing")

    said = f"{SHOP} may send to orders\n{SHOP} may be a member of billing\n"
    assert place.done(*grant, "--namespace", "shop") == said
    assert place.done(*grant) == said.replace(" may ", " already could ")
    assert "'the shop' is a role, and has rights in shop" in place.call(*grant, "--namespace", "other").errors
    listed = json_lines(place.done("acl", "list", "--json"))
    assert [each["resource"] for each in listed] == ["shop%billing", "shop%orders"]
    assert place.done("acl", "check", SHOP, "--send", "orders").endswith("by its right on shop%orders\n")
    assert place.done("acl", "grant", "AKIA-1", "--external", "--send", "orders") == "AKIA-1 may send to orders\n"
    assert place.done("acl", "check", "AKIA-1", "--send", "orders").endswith("by its right on orders\n")


def test_a_role_is_made_if_the_owner_may_make_roles(place: Place, database: Database) -> None:
    grant = ("acl", "grant", "new role", "--send", "orders", "--create")
    superuser, owner = database.connect_as_superuser(), sql.Identifier(OWNER)

    assert "permission denied to create role" in place.call(*grant).errors
    superuser.execute(sql.SQL("ALTER ROLE {} CREATEROLE").format(owner))
    try:
        assert place.done(*grant) == "new role may send to orders\n"
        assert place.done(*grant) == "new role already could send to orders\n"
    finally:
        superuser.execute(sql.SQL("ALTER ROLE {} NOCREATEROLE").format(owner))
        superuser.execute('DROP OWNED BY "new role"')
        superuser.execute('DROP ROLE "new role"')


def test_rights_come_from_a_file(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(f'["{SHOP}"]\nsend = ["orders", "invoices-*"]\nread = ["orders"]\ngroup = ["billing"]\n')
    apply = ("acl", "apply", str(file))

    asked = place.call(*apply)
    assert (asked.code, "No terminal to confirm it; add --yes" in asked.errors) == (1, True)
    assert place.done("acl", "list") == "No role except the owner has any right.\n"
    changes = json_lines(place.done(*apply, "--yes", "--json"))
    assert [(each["access"], each["type"], each["resource"], each["change"]) for each in changes] == [
        ("READ", "GROUP", "billing", "granted"),
        ("READ", "TOPIC", "orders", "granted"),
        ("SEND", "TOPIC", "invoices-*", "granted"),
        ("SEND", "TOPIC", "orders", "granted"),
    ]
    assert place.done(*apply) == "Nothing to change.\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[shop", "Expected"),
        (
            'shop = "orders"',
            "role 'shop' needs a table with some of `send`, `read`, `group`, `operate`",
        ),
        (
            "[shop]\nown = []",
            "role 'shop' needs a table with some of `send`, `read`, `group`, `operate`",
        ),
        ("[shop]\nsend = [1]", "send of role 'shop' must be a list of texts"),
        ("[shop]\nnamespace = 1", "namespace of role 'shop' must be a text"),
        ("[shop]\nexternal = 1", "external of role 'shop' must be true or false"),
        ('[nobody]\nsend = ["orders"]', "is not a role of this server"),
    ],
)
def test_a_file_that_says_nonsense_changes_nothing(place: Place, tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(text)

    refused = place.call("acl", "apply", str(file), "--yes")

    assert refused.code == 1
    assert sentence in refused.errors
    assert place.done("acl", "list") == "No role except the owner has any right.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("grant", "nobody", "--send", "orders"), "is not a role of this server; create it with CREATE ROLE"),
        (("grant", SHOP), "give at least one topic or group"),
        (("grant", SHOP, "--group", "or*"), "group"),
        (("check", SHOP), "name a topic with --send, --read and so on, or a group with --group"),
        (("grant", SHOP, "--send", "%RETRY%g"), "belongs to the broker, a group or replies; no right covers it"),
        (("revoke", SHOP), "name the rights with --send, --read, --group and so on, or give --all"),
        (
            ("revoke", SHOP, "--all", "--send", "orders"),
            "name the rights with --send, --read, --group and so on, or give --all",
        ),
        (("revoke", SHOP, "--send", "orders"), "has no such right; see: mqdb acl list"),
    ],
)
def test_what_cannot_be_done_is_said(place: Place, arguments: tuple[str, ...], sentence: str) -> None:
    refused = place.call("acl", *arguments)

    assert (refused.code, refused.text) == (1, "")
    assert sentence in refused.errors


def test_a_guest_uses_the_command_line_within_its_rights(place: Place, database: Database, tmp_path: Path) -> None:
    for topic in ("orders", "secret"):
        place.done("topic", "create", topic)
        place.done("send", topic, f"in {topic}")
    place.done("acl", "grant", SHOP, "--read", "orders", "--group", "billing", "--send", "answers")
    guest = Place(tmp_path / "guest", with_parts(database.dsn, user=SHOP, password=PASSWORD))

    assert guest.done("consume", "orders", "--exit") == "in orders\n"
    assert guest.done("consume", "orders", "--exit", "--group", "billing") == "in orders\n"
    assert "orders" in guest.done("topic", "show", "orders")
    assert "secret" not in guest.done("topic", "list")
    assert "billing" in guest.done("group", "list")
    assert len(guest.done("message", "find", "orders", "--offset", "0", "--json").splitlines()) == 1
    for denied, said in (
        (("topic", "show", "secret"), "does not exist"),
        (("send", "secret", "x"), "has no right SEND on TOPIC 'secret'"),
        (("send", "orders", "x"), "has no right SEND on TOPIC 'orders'"),
        (("consume", "orders", "--group", "payroll", "--exit"), "has no right READ on GROUP 'payroll'"),
        (("topic", "delete", "orders"), "has no right ADMIN on TOPIC 'orders'"),
        (("group", "delete", "billing", "--yes"), "has no right ADMIN on GROUP 'billing'"),
        (("acl", "list"), "permission denied"),
    ):
        refused = guest.call(*denied)
        assert (refused.code, said in refused.errors) == (1, True), (denied, refused.errors)
