"""`mqdb consumer list | status | consume`: the consumers that run, and what can be asked of them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.connection import Answers, ask_each, chosen_brokers, connected_to
from mqdb.cli.options import Command, Group, start
from mqdb.cli.rows import Brokers, Json, Row, in_a_line, json_of, of_broker, print_rows, seconds, spoken, table_of
from mqdb.errors import ClientOffline, ParameterInvalid

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from mqdb.broker.messages import StoredCopy
    from mqdb.dsn import BrokerDsn
    from mqdb.settings import Settings
    from mqdb.store.groups import MemberInfo

app = typer.Typer(cls=Group, rich_markup_mode="rich")

ClientId = Annotated[
    str, typer.Argument(metavar="CLIENT_ID", help="As [bold]mqdb consumer list[/bold] shows it.", show_default=False)
]


@app.callback(invoke_without_command=True)
def consumer(context: typer.Context) -> None:
    """Look at running consumers, and have one consume a message now.

    A process has another client id on each broker.

    \b
    [bold]Examples[/bold]
      mqdb consumer list
      mqdb consumer status '10.0.0.7@4711#81726354' --stack
      mqdb consumer consume '10.0.0.7@4711#81726354' --group billing \\
        --message-id 0A0B0C0D1E2F00000000000000000001
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Only of this group.", show_default=False)
    ] = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List the consumers that are registered, and since when each has given no sign of life.

    \b
    [bold]Examples[/bold]
      mqdb consumer list
      mqdb consumer list --group billing --json | jq -r .client_id
    """
    from mqdb.broker.groups import list_members

    settings = start(context)

    def members_on(one: "BrokerDsn") -> "list[MemberInfo]":
        with connected_to(one) as connection:
            return list_members(connection, group)

    answers = ask_each(chosen_brokers(settings, broker), members_on)
    rows: list[Row] = [
        {
            "group": each.group,
            **of_broker(settings, broker_name),
            "client_id": each.client_id,
            "model": each.message_model,
            "queues": each.queues,
            "since": each.registered_at,
            "silent_seconds": seconds(each.silent_seconds),
            "language": each.language,
            "version": each.version,
        }
        for broker_name, members in answers.results.items()
        for each in members
    ]
    if rows or not answers.failures:
        print_rows(rows, as_json, "No consumer is there.")
    answers.check()


@app.command(cls=Command)
def status(
    context: typer.Context,
    client_id: ClientId,
    stack: Annotated[bool, typer.Option("--stack", help="Also where the listeners are that run now.")] = False,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Ask a consumer how it is: its queues, and the listeners that have not returned.

    The stack of a listener that hangs tells where it does.

    \b
    [bold]Examples[/bold]
      mqdb consumer status '10.0.0.7@4711#81726354'
      mqdb consumer status '10.0.0.7@4711#81726354' --stack
      mqdb consumer status '10.0.0.7@4711#81726354' --json | jq .queues
    """
    from mqdb.broker.client_requests import RequestKind

    settings = start(context)

    def status_on(one: "BrokerDsn") -> list[Row]:
        with connected_to(one) as connection:
            return [
                {"client_id": client_id, "group": group, **of_broker(settings, one.name)}
                | _answer(connection, client_id, RequestKind.STATUS, {"group": group})
                for group in _groups_of(connection, client_id)
            ]

    answers = ask_each(chosen_brokers(settings, broker), status_on).without(ClientOffline)
    for found in answers.results.values():
        for each in found:
            if as_json:
                print(json_of(each))
            else:
                _print_status(each, stack)
    answers.check()


def _groups_of(connection: "Connection", client_id: str) -> list[str]:
    """The groups in which the client is a consumer. Raises ClientOffline where there is none."""
    from mqdb.broker.groups import list_members

    groups = [member.group for member in list_members(connection) if member.client_id == client_id]
    if not groups:
        raise ClientOffline(client_id)
    return groups


def _answer(connection: "Connection", client_id: str, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from mqdb.broker.client_requests import ask, wait_for_answer

    return wait_for_answer(connection, ask(connection, client_id, kind, arguments))


def _print_status(described: dict[str, Any], with_stacks: bool) -> None:
    """Single values in a line, lists of rows as tables; the stacks below, which no table can hold."""
    from mqdb.cli.console import standard_output

    tables = {name: value for name, value in described.items() if isinstance(value, list)}
    single = {name: value for name, value in described.items() if name not in (*tables, "client_id")}
    print(f"{described['client_id']}: {in_a_line(single)}")
    for name, rows in tables.items():
        shown = [{column: value for column, value in row.items() if column != "stack"} for row in rows]
        print()
        standard_output().print(table_of(shown) if shown else f"no {spoken(name)}")
    if with_stacks:
        for row in described.get("listeners", []):
            print(f"\n{row['thread']}:\n{row['stack']}".rstrip("\n"))


@app.command(cls=Command)
def consume(
    context: typer.Context,
    client_id: ClientId,
    group: Annotated[
        str, typer.Option("--group", "-g", metavar="NAME", help="The group of the consumer.", show_default=False)
    ],
    message_id: Annotated[
        str, typer.Option("--message-id", "-m", metavar="ID", help="The message; its unique id.", show_default=False)
    ],
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Have a consumer consume one message now, and tell what its listener answers.

    Nothing else changes: no offset moves, and what fails does not come again.
    Of a message that was retried it gets the first copy that there still is in
    a topic that the group has subscribed to. Waits for 10 seconds. As
    mqadmin consumeMessage and the dashboard's resend do.

    \b
    [bold]Examples[/bold]
      mqdb consumer consume '10.0.0.7@4711#81726354' --group billing \\
        --message-id 0A0B0C0D1E2F00000000000000000001
    """
    from mqdb.broker.client_requests import RequestKind
    from mqdb.unique_id import parse_unique_id

    settings = start(context)
    unique_id = parse_unique_id(message_id)

    def consume_on(one: "BrokerDsn") -> Row:
        with connected_to(one) as connection:
            if group not in _groups_of(connection, client_id):
                raise ParameterInvalid("group", group, f"client {client_id} is no member of it")
            copy = _copy_for(connection, group, unique_id, message_id)
            where = {"topic": copy.topic, "queue": copy.queue_id}
            request = {"group": group, "log_pos": copy.log_pos}
            return where | _answer(connection, client_id, RequestKind.CONSUME_DIRECTLY, request)

    answers = ask_each(chosen_brokers(settings, broker), consume_on).without(ClientOffline)
    _print_results(settings, answers, as_json)
    answers.check()


def _copy_for(connection: "Connection", group: str, unique_id: "UUID", message_id: str) -> "StoredCopy":
    """The copy of a message that the group would get: of a topic that it subscribes to, if there is one."""
    from mqdb.broker.groups import show_group
    from mqdb.broker.messages import find_copies
    from mqdb.cli.reader import tend_dispatch

    tend_dispatch(connection)
    copies = find_copies(connection, unique_id)
    if not copies:
        raise ParameterInvalid("message_id", message_id, "there is no such message")
    topics = {each.topic for each in show_group(connection, group).subscriptions}
    return next((copy for copy in copies if copy.topic in topics), copies[0])


def _print_results(settings: "Settings", answers: Answers[Row], as_json: bool) -> None:
    rows = [of_broker(settings, name) | result for name, result in answers.results.items()]
    if as_json:
        print_rows(rows, as_json, "")
        return
    for row in rows:
        print(f"{row['result']} in {row['spent_ms']:,} ms: message of topic {row['topic']}, queue {row['queue']}")
        for text in (row["remark"], row["traceback"]):
            if text:
                print(text.rstrip("\n"))
