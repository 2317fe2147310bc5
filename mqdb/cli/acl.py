"""`mqdb acl grant | revoke | apply | list | check`: who may send to which topics, on all brokers of the settings."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.confirm import confirm
from mqdb.cli.options import Command, Group, start
from mqdb.cli.rows import Brokers, Json, Row, Yes, on, print_answers
from mqdb.errors import AccessDenied, ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import BrokerAdmin, Right, RightChange

app = typer.Typer(cls=Group, rich_markup_mode="rich")

Role = Annotated[str, typer.Argument(metavar="ROLE", help="A login role of PostgreSQL.", show_default=False)]


@app.callback(invoke_without_command=True)
def acl(context: typer.Context) -> None:
    """Say who may send to which topics, beside the owner of the broker.

    A role that has the right sends by [bold]mqdb.send[/bold] in SQL, and needs no rights on tables.

    \b
    [bold]Examples[/bold]
      mqdb acl grant shop --send orders --send 'invoices-*'
      mqdb acl list
      mqdb acl check shop --send orders
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(cls=Command)
def grant(
    context: typer.Context,
    role: Role,
    send: Annotated[
        list[str],
        typer.Option(
            "--send", metavar="TOPIC", help="A topic, or a prefix that ends in *; may be repeated.", show_default=False
        ),
    ],
    broker: Brokers = None,
) -> None:
    """Let a role send to topics.

    A prefix also covers topics that are made later, and no topic of the broker,
    of a group or of replies.

    \b
    [bold]Examples[/bold]
      mqdb acl grant shop --send orders
      mqdb acl grant shop --send 'invoices-*' --send returns
    """
    from mqdb_client import Admin

    settings = start(context)

    def grant_on(one: "BrokerAdmin") -> None:
        new = one.acl.grant(role, send=send)
        for topic in send:
            state = "may send to" if topic in new else "already could send to"
            print(f"{role} {state} {topic}{on(settings, one.name)}")

    with Admin(settings=settings) as admin:
        admin.on_each(grant_on, broker).check()


@app.command(cls=Command)
def revoke(
    context: typer.Context,
    role: Role,
    send: Annotated[
        list[str] | None,
        typer.Option("--send", metavar="TOPIC", help="As it was granted; may be repeated.", show_default=False),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All rights of the role.")] = False,
    broker: Brokers = None,
) -> None:
    """Take rights away from a role.

    \b
    [bold]Examples[/bold]
      mqdb acl revoke shop --send 'invoices-*'
      mqdb acl revoke shop --all
    """
    from mqdb_client import Admin

    if bool(send) == all_:
        raise ParameterInvalid("send", send, "name the rights with --send, or say --all")
    settings = start(context)

    def revoke_on(one: "BrokerAdmin") -> None:
        gone = one.acl.revoke(role, send=send)
        for topic in gone:
            print(f"{role} may not send to {topic} any more{on(settings, one.name)}")
        if not gone:
            print(f"{role} has no right{on(settings, one.name)}")

    with Admin(settings=settings) as admin:
        admin.on_each(revoke_on, broker).check()


@app.command(cls=Command)
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with a table for each role.")],
    broker: Brokers = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Bring the rights of roles to what a file says.

    Shows what will change and asks, unless with [bold]--yes[/bold]. A second time nothing
    changes. A role that the file does not name keeps its rights.

    \b
    [bold]A file[/bold]
      \\[shop]
      send = ["orders", "invoices-*"]
      \\["the auditors"]
      send = []

    \b
    [bold]Examples[/bold]
      mqdb acl apply rights.toml
      mqdb acl apply rights.toml --yes
    """
    from mqdb_client import Admin

    settings = start(context)
    wanted = _read(file)
    with Admin(settings=settings) as admin:
        planned = admin.on_each(lambda one: one.acl.apply(wanted, dry_run=True), broker)
        print_answers(settings, planned, _changed, as_json, "Nothing to change.")
        if not any(planned.results.values()):
            return
        if not yes:
            confirm("Change these rights?")
        admin.on_each(lambda one: one.acl.apply(wanted), broker).check()


def _read(file: Path) -> dict[str, list[str]]:
    """The topics of each role. Raises ParameterInvalid."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ParameterInvalid("file", str(file), str(error)) from error
    for role, rights in tables.items():
        if not isinstance(rights, dict) or rights.keys() != {"send"}:
            raise ParameterInvalid("file", str(file), f"role {role!r} needs a table with `send`, and nothing else")
        topics = rights["send"]
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise ParameterInvalid("file", str(file), f"send of role {role!r} is no list of texts")
    return {role: rights["send"] for role, rights in tables.items()}


def _changed(change: "RightChange") -> Row:
    state = "granted" if change.is_granted else "taken away"
    return {"role": change.principal, "access": "SEND", "topic": change.topic, "change": state}


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    role: Annotated[str | None, typer.Argument(metavar="[ROLE]", help="Only of this role.", show_default=False)] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only those that cover this topic.", show_default=False)
    ] = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List rights. The owner of the broker, and the members of its role, may do everything without one.

    \b
    [bold]Examples[/bold]
      mqdb acl list
      mqdb acl list shop --json
      mqdb acl list --topic orders
    """
    from mqdb_client import Admin

    settings = start(context)
    with Admin(settings=settings) as admin:
        answers = admin.on_each(lambda one: one.acl.list(role, topic), broker)
    print_answers(settings, answers, _described, as_json, "Nobody but the owner has a right.")


def _described(right: "Right") -> Row:
    return {"role": right.principal, "access": right.access, "topic": right.topic, "granted": right.granted_at}


@app.command(cls=Command)
def check(
    context: typer.Context,
    role: Role,
    send: Annotated[str, typer.Option("--send", metavar="TOPIC", help="The topic.", show_default=False)],
    broker: Brokers = None,
) -> None:
    """Say whether a role may send to a topic, and which right lets it. Fails if it may not.

    \b
    [bold]Examples[/bold]
      mqdb acl check shop --send orders
    """
    from mqdb_client import Admin

    settings = start(context)

    def check_on(one: "BrokerAdmin") -> None:
        if not one.acl.allows(role, send=send):
            raise AccessDenied(role, "SEND", "TOPIC", send)
        rights = one.acl.list(role, send)
        why = f"by its right on {rights[0].topic}" if rights else "as the owner of the broker"
        print(f"{role} may send to {send} {why}{on(settings, one.name)}")

    with Admin(settings=settings) as admin:
        admin.on_each(check_on, broker).check()
