"""`mqdb consumer list | status | consume`: the running consumers, and requests to them."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, in_a_line, json_of, of_broker, print_answers, seconds, spoken, table_of
from mqdb.errors import ClientOffline

if TYPE_CHECKING:
    from mqdb_client import MemberInfo

app = command_group(
    """Look at running consumers, and have a consumer process a message now.

    A process has a different client id on each broker.

    \b
    [bold]Examples[/bold]
      mqdb consumer list
      mqdb consumer status '10.0.0.7@4711#81726354' --stack
      mqdb consumer consume '10.0.0.7@4711#81726354' --group billing \\
        --message-id 0A0B0C0D1E2F00000000000000000001
    """
)

ClientId = Annotated[
    str,
    typer.Argument(
        metavar="CLIENT_ID", help="The client id, as [bold]mqdb consumer list[/bold] shows it.", show_default=False
    ),
]


Role = Annotated[
    str | None,
    typer.Option("--role", metavar="NAME", help="Only the client of this role.", show_default=False),
]


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Only consumers of this group.", show_default=False),
    ] = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List the registered consumers, and when each last gave a sign of life.

    \b
    [bold]Examples[/bold]
      mqdb consumer list
      mqdb consumer list --group billing --json | jq -r .client_id
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.consumers.list(group), broker)
    print_answers(admin, answers, _member, as_json, "No consumer is registered.")


def _member(member: "MemberInfo") -> Row:
    return {
        "group": member.group,
        "client_id": member.client_id,
        "role": member.principal,
        "model": member.message_model,
        "queues": member.queues,
        "since": member.registered_at,
        "silent_seconds": seconds(member.silent_seconds),
        "language": member.language,
        "version": member.version,
    }


@app.command(cls=Command)
def status(
    context: typer.Context,
    client_id: ClientId,
    stack: Annotated[bool, typer.Option("--stack", help="Also show the stacks of running listeners.")] = False,
    role: Role = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Show the status of a consumer: its queues, and the listeners that are still running.

    The stack shows where a listener hangs.

    \b
    [bold]Examples[/bold]
      mqdb consumer status '10.0.0.7@4711#81726354'
      mqdb consumer status '10.0.0.7@4711#81726354' --stack
      mqdb consumer status '10.0.0.7@4711#81726354' --json | jq .queues
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.consumers.status(client_id, principal=role), broker).without(
            ClientOffline
        )
    for broker_name, found in answers.results.items():
        for each in found:
            where = {"client_id": client_id, "group": each.group, **of_broker(admin, broker_name)}
            described = where | each.details | {"role": each.principal}
            if as_json:
                print(json_of(described))
            else:
                _print_status(described, stack)
    answers.check()


def _print_status(described: dict[str, Any], with_stacks: bool) -> None:
    """Print single values in one line and lists of rows as tables, then the stacks, which do not fit into a table."""
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
        str, typer.Option("--message-id", "-m", metavar="ID", help="The unique id of the message.", show_default=False)
    ],
    role: Role = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Have a consumer process one message now, and print the result of its listener.

    Nothing else changes: no offset moves, and a failed message is not retried. If the message was retried, the consumer
    gets the first remaining copy in a topic that the group has subscribed to. The command waits up to 10 seconds for
    the result. It works like mqadmin consumeMessage, and like the resend button in RocketMQ's dashboard.

    \b
    [bold]Examples[/bold]
      mqdb consumer consume '10.0.0.7@4711#81726354' --group billing \\
        --message-id 0A0B0C0D1E2F00000000000000000001
    """
    with administering(context) as admin:
        asked = admin.on_each(lambda one: one.consumers.consume(client_id, group, message_id, principal=role), broker)
    answers = asked.without(ClientOffline)
    for broker_name, (topic, queue_id, told) in answers.results.items():
        if as_json:
            where = {**of_broker(admin, broker_name), "topic": topic, "queue": queue_id}
            print(json_of(where | asdict(told)))
            continue
        print(f"{told.result} in {told.spent_ms:,} ms: message of topic {topic}, queue {queue_id}")
        for text in (told.remark, told.traceback):
            if text:
                print(text.rstrip("\n"))
    answers.check()
