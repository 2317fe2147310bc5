"""`mqdb acl grant | revoke | apply | list | check`: access rights, on all brokers in the settings."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.confirm import confirm
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, Yes, on, print_answers
from mqdb.errors import AccessDenied, ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import BrokerAdmin, Resource, Right, RightChange, Rights

app = command_group(
    """Manage the rights of roles to send, read, consume, operate and administer.

    A role other than the owner needs only these rights, and no rights on tables. It uses clients,
    [bold]mqdb.send[/bold] and the views, and sees only the topics and groups that its rights cover.

    \b
    [bold]Examples[/bold]
      mqdb acl grant shop --send orders --send 'invoices-*'
      mqdb acl grant billing --read orders --group billing
      mqdb acl grant ada --operate 'orders*' --operate-group billing
      mqdb acl list
      mqdb acl check shop --send orders
    """
)

Role = Annotated[str, typer.Argument(metavar="ROLE", help="A login role of PostgreSQL.", show_default=False)]

_TOPICS = "A topic, or a prefix that ends in *; may be repeated."
Send = Annotated[list[str] | None, typer.Option("--send", metavar="TOPIC", help=_TOPICS, show_default=False)]
Read = Annotated[list[str] | None, typer.Option("--read", metavar="TOPIC", help=_TOPICS, show_default=False)]
Member = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="A consumer group; may be repeated.", show_default=False),
]

Operate = Annotated[list[str] | None, typer.Option("--operate", metavar="TOPIC", help=_TOPICS, show_default=False)]
Admins = Annotated[list[str] | None, typer.Option("--admin", metavar="TOPIC", help=_TOPICS, show_default=False)]
_GROUPS = "A group, or a prefix that ends in *; may be repeated."
OperateGroup = Annotated[
    list[str] | None, typer.Option("--operate-group", metavar="GROUP", help=_GROUPS, show_default=False)
]
AdminGroup = Annotated[
    list[str] | None, typer.Option("--admin-group", metavar="GROUP", help=_GROUPS, show_default=False)
]

Namespace = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Namespace of these topics and groups: the role calls a topic orders, other roles call it NAME%orders.",
        show_default=False,
    ),
]

#: The verb for each right, by access and resource type.
_VERBS = {
    ("SEND", "TOPIC"): "send to",
    ("READ", "TOPIC"): "read",
    ("READ", "GROUP"): "be a member of",
    ("OPERATE", "TOPIC"): "operate topic",
    ("OPERATE", "GROUP"): "operate group",
    ("ADMIN", "TOPIC"): "administer topic",
    ("ADMIN", "GROUP"): "administer group",
}


@app.command(cls=Command)
def grant(
    context: typer.Context,
    role: Role,
    send: Send = None,
    read: Read = None,
    group: Member = None,
    operate: Operate = None,
    operate_group: OperateGroup = None,
    admin: Admins = None,
    admin_group: AdminGroup = None,
    namespace: Namespace = None,
    external: Annotated[
        bool, typer.Option("--external", help="The principal is not a role: a user of the dashboard, or an access key.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the role if it does not exist: it may log in, without a password.")
    ] = False,
    broker: Brokers = None,
) -> None:
    """Let a role send to topics, read topics, be a member of groups, or operate and administer topics and groups.

    A prefix also covers topics that are created later, but never internal topics: those of the broker, of a group's
    retries and dead letters, or of replies. A consumer needs a right on each topic that it reads, and on its group; the
    right on the group includes the group's retries and dead letters.

    With [bold]--namespace[/bold], two teams can use the same names without seeing each other's topics and groups. A
    role has at most one namespace, for all of its rights.

    An operator of a group redrives its dead letters and resets its offsets. An operator of a topic recalls its
    scheduled messages, resolves its half messages and keeps its crons. An operator's rights do not include reading
    messages. An administrator of a topic or a group creates, changes and deletes it.

    \b
    [bold]Examples[/bold]
      mqdb acl grant shop --send orders
      mqdb acl grant billing --read orders --group billing --create
      mqdb acl grant audit --read '*'
      mqdb acl grant ada --operate orders --operate-group billing
      mqdb acl grant grace --admin 'shop-*' --admin-group 'shop-*'
      mqdb acl grant shop_app --namespace shop --send orders --group billing
    """
    from mqdb_client import Rights

    given = _given(send, read, group, operate, operate_group, admin, admin_group)
    rights = Rights(**given)

    with administering(context) as brokers:

        def grant_on(one: "BrokerAdmin") -> None:
            new = one.acl.grant(role, **given, namespace=namespace, external=external, create=create)
            for each in rights.resources():
                state = "may" if any(_is(each, one) for one in new) else "already could"
                print(f"{role} {state} {_said(each)}{on(brokers, one.name)}")

        brokers.on_each(grant_on, broker).check()


def _is(given: "Resource", whole: "Resource") -> bool:
    return given[:2] == whole[:2] and (whole.name == given.name or whole.name.endswith(f"%{given.name}"))


def _given(*names: list[str] | None) -> dict[str, Any]:
    """The given options that name rights, in the order of their kinds, as `Admin.acl` takes them."""
    from mqdb_client import Rights

    return {kind: given for kind, given in zip(Rights.KINDS, names, strict=True) if given}


def _said(resource: "Resource") -> str:
    return f"{_VERBS[resource.access, resource.resource_type]} {resource.name}"


@app.command(cls=Command)
def revoke(
    context: typer.Context,
    role: Role,
    send: Send = None,
    read: Read = None,
    group: Member = None,
    operate: Operate = None,
    operate_group: OperateGroup = None,
    admin: Admins = None,
    admin_group: AdminGroup = None,
    all_: Annotated[bool, typer.Option("--all", help="Revoke all rights of the role.")] = False,
    broker: Brokers = None,
) -> None:
    """Revoke rights of a role, named exactly as they were granted.

    \b
    [bold]Examples[/bold]
      mqdb acl revoke shop --send 'invoices-*'
      mqdb acl revoke shop --all
    """
    given = _given(send, read, group, operate, operate_group, admin, admin_group)
    if bool(given) == all_:
        raise ParameterInvalid("send", send, "name the rights with --send, --read, --group and so on, or give --all")

    with administering(context) as brokers:

        def revoke_on(one: "BrokerAdmin") -> None:
            gone = one.acl.revoke(role, **given)
            for each in gone:
                print(f"{role} may not {_said(each)} any more{on(brokers, one.name)}")
            if not gone:
                print(f"{role} has no right{on(brokers, one.name)}")

        brokers.on_each(revoke_on, broker).check()


@app.command(cls=Command)
def secret(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="An access key: a principal that is not a role.")],
    given: Annotated[
        str | None,
        typer.Option(
            "--secret", metavar="TEXT", help="The secret; if not given, a new secret is generated and printed."
        ),
    ] = None,
    none: Annotated[
        bool, typer.Option("--none", help="Remove the secret: clients can no longer log in with this key.")
    ] = False,
    broker: Brokers = None,
) -> None:
    """Give an access key a secret, with which RocketMQ's own clients sign requests.

    The rights of the key are those granted by [bold]mqdb acl grant KEY --external[/bold]. As soon as one key has a
    secret, every client that uses RocketMQ's protocol with this broker needs a key and a secret.

    \b
    [bold]Examples[/bold]
      mqdb acl grant shop-java --external --send orders
      mqdb acl secret shop-java
      mqdb acl secret shop-java --none
    """
    import secrets

    if given is not None and none:
        raise ParameterInvalid("secret", "***", "give --secret or --none")
    chosen = None if none else given or secrets.token_urlsafe(24)
    with administering(context) as brokers:
        brokers.on_each(lambda one: one.acl.set_secret(key, chosen), broker).check()
    if chosen is not None and given is None:
        print(chosen)


@app.command(cls=Command)
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with a table for each role.")],
    broker: Brokers = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Change the rights of roles to those in a file.

    The command shows the changes and asks for confirmation, unless [bold]--yes[/bold] is given. Applying the same file
    again changes nothing. A role that is not in the file keeps its rights.

    \b
    [bold]A file[/bold]
      \\[shop]
      send = ["orders", "invoices-*"]
      \\[billing]
      read = ["orders"]
      group = ["billing"]
      \\[ada]
      operate = ["orders"]
      operate_group = ["billing"]
      \\["the auditors"]
      namespace = "audit"

    \b
    [bold]Examples[/bold]
      mqdb acl apply rights.toml
      mqdb acl apply rights.toml --yes
    """
    wanted = _read(file)
    with administering(context) as admin:
        planned = admin.on_each(lambda one: one.acl.apply(wanted, dry_run=True), broker)
        print_answers(admin, planned, _changed, as_json, "Nothing to change.")
        if not any(planned.results.values()):
            return
        if not yes:
            confirm("Change these rights?")
        admin.on_each(lambda one: one.acl.apply(wanted), broker).check()


def _read(file: Path) -> "dict[str, Rights]":
    """Read the rights of each role from a file. Raises ParameterInvalid if the file is not valid."""
    from mqdb_client import Rights

    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ParameterInvalid("file", str(file), str(error)) from error
    known = {**dict.fromkeys(Rights.KINDS, "a list of texts"), "namespace": "a text", "external": "true or false"}
    for role, rights in tables.items():
        if not isinstance(rights, dict) or not rights.keys() <= known.keys():
            names = ", ".join(f"`{name}`" for name in known)
            reason = f"role {role!r} needs a table with some of {names}, and nothing else"
            raise ParameterInvalid("file", str(file), reason)
        for name, value in rights.items():
            if not _fits(value, known[name]):
                raise ParameterInvalid("file", str(file), f"{name} of role {role!r} must be {known[name]}")
    return {role: Rights(**rights) for role, rights in tables.items()}


def _fits(value: object, kind: str) -> bool:
    if kind == "a list of texts":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, str if kind == "a text" else bool)


def _changed(change: "RightChange") -> Row:
    return _row(change.principal, change.resource) | {"change": "granted" if change.is_granted else "taken away"}


def _row(principal: str, resource: "Resource") -> Row:
    access, type_, name = resource
    return {"role": principal, "access": access, "type": type_, "resource": name}


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    role: Annotated[
        str | None, typer.Argument(metavar="[ROLE]", help="Only the rights of this role.", show_default=False)
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only rights that cover this topic.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only rights on this group.", show_default=False)
    ] = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List rights. The owner of the broker, and the members of the owner role, may do everything without any right.

    \b
    [bold]Examples[/bold]
      mqdb acl list
      mqdb acl list shop --json
      mqdb acl list --topic orders
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.acl.list(role, topic=topic, group=group), broker)
    print_answers(admin, answers, _described, as_json, "No role except the owner has any right.")


def _described(right: "Right") -> Row:
    return _row(right.principal, right.resource) | {"granted": right.granted_at}


Asked = Annotated[str | None, typer.Option(metavar="TOPIC", help="The topic.", show_default=False)]
AskedGroup = Annotated[str | None, typer.Option(metavar="GROUP", help="The group.", show_default=False)]


@app.command(cls=Command)
def check(
    context: typer.Context,
    role: Role,
    send: Asked = None,
    read: Asked = None,
    group: AskedGroup = None,
    operate: Asked = None,
    operate_group: AskedGroup = None,
    admin: Asked = None,
    admin_group: AskedGroup = None,
    broker: Brokers = None,
) -> None:
    """Say whether a role may do something with a topic or a group, and which right allows it.

    The command fails if the role may not.

    \b
    [bold]Examples[/bold]
      mqdb acl check shop --send orders
      mqdb acl check billing --read orders --group billing
      mqdb acl check ada --operate orders --operate-group billing
    """
    from mqdb_client import Rights

    asked = (send, read, group, operate, operate_group, admin, admin_group)
    wanted = Rights(*([name] if name is not None else [] for name in asked)).resources()
    if not wanted:
        raise ParameterInvalid("send", send, "name a topic with --send, --read and so on, or a group with --group")

    with administering(context) as brokers:

        def check_on(one: "BrokerAdmin") -> None:
            for each in wanted:
                why = _reason(one, role, each)
                if why is None:
                    raise AccessDenied(role, *each)
                print(f"{role} may {_said(each)} {why}{on(brokers, one.name)}")

        brokers.on_each(check_on, broker).check()


def _reason(one: "BrokerAdmin", role: str, wanted: "Resource") -> str | None:
    """The reason why a role is allowed to do something, as text for people; None if it is not allowed."""
    from mqdb_client import Rights

    access, type_, name = wanted
    kind = next(kind for kind, what in Rights.KINDS.items() if what == (access, type_))
    if not one.acl.allows(role, **{kind: name}):
        return None
    where = {"group" if type_ == "GROUP" else "topic": name}
    rights = [right.resource for right in one.acl.list(role, **where) if right.resource[:2] == (access, type_)]
    return f"by its right on {rights[0].name}" if rights else "as the owner of the broker"
