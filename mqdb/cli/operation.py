"""`mqdb operation list`: what people and tools have changed, on all brokers that the settings name."""

from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, print_answers
from mqdb.cli.times import parse_time

if TYPE_CHECKING:
    from mqdb_client import Operation

app = command_group(
    """See who has changed what: topics, groups, offsets, crons, dead letters, messages that wait.

    Each change is a row of [bold]mqdb.operation[/bold]: the role of the database, the person or program
    behind it (setting [bold]actor[/bold], else who is logged in), and what was there before.

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
        str | None, typer.Option(metavar="TOPIC", help="Only about this topic.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only about this consumer group.", show_default=False)
    ] = None,
    about: Annotated[
        str | None,
        typer.Option(
            "--object", metavar="NAME", help="Only about this cron, or the message of this id.", show_default=False
        ),
    ] = None,
    actor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only by this person, program or role.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only since then: 2026-07-14T09:30+02:00, or 2h for ago.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="So many of each broker.")] = 100,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List what was changed, when and by whom, the newest first.

    With [bold]--json[/bold] also what was there before, and what is there after it.

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
        "Nobody has changed it.",
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
