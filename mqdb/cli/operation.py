"""`mqdb operation list`: changes made by people and tools, on all brokers in the settings."""

from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, print_answers
from mqdb.cli.times import parse_time

if TYPE_CHECKING:
    from mqdb_client import Operation

app = command_group(
    """Show who changed what: topics, groups, offsets, crons, dead letters, and waiting messages.

    Each change is a row of [bold]mqdb.operation[/bold], with the database role, the person or program (the setting
    [bold]actor[/bold], or the name of the logged-in user), and the previous values.

    \b
    [bold]Examples[/bold]
      mqdb operation list
      mqdb operation list --topic orders --since 2h
    """
)


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only changes to this topic.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only changes to this consumer group.", show_default=False)
    ] = None,
    about: Annotated[
        str | None,
        typer.Option(
            "--object",
            metavar="NAME",
            help="Only changes to this cron, or to the message with this id.",
            show_default=False,
        ),
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only changes by this person, program or role.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only changes since this time: 2026-07-14T09:30+02:00, or 2h for two hours ago.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many changes on each broker.")
    ] = 100,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List changes, with their time and author, newest first.

    With [bold]--json[/bold], each change includes the values before and after it.

    \b
    [bold]Examples[/bold]
      mqdb operation list --topic orders --since 2h
      mqdb operation list --group billing --json | jq -r .reason
      mqdb operation list --actor ada -n 10
    """
    from mqdb_client import Operation

    moment = None if since is None else parse_time("since", since)
    with administering(context) as admin:
        answers = admin.on_each(
            lambda one: one.operations.list(
                topic=topic, group=group, object=about, actor=actor, since=moment, limit=limit
            ),
            broker,
        )
    print_answers(
        admin,
        answers,
        Operation._asdict if as_json else _described,
        as_json,
        "There are no such changes.",
        ordered=True,
        descending=True,
    )


def _described(operation: "Operation") -> Row:
    return {
        "when": operation.occurred_at,
        "who": operation.actor or operation.principal,
        "what": operation.verb,
        "topic": ", ".join(operation.topics),
        "group": ", ".join(operation.groups),
        "object": operation.object,
        "records": operation.records,
        "reason": operation.reason,
    }
