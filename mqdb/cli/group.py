"""`mqdb group list | show | set | delete | offset`, on all brokers that the settings name."""

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.confirm import confirm
from mqdb.cli.group_offset import app as offset
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import (
    Brokers,
    Json,
    Row,
    Yes,
    has_several,
    in_a_line,
    json_of,
    of_broker,
    of_part,
    on,
    print_answers,
    seconds,
    table_of,
)
from mqdb.common.group import ConsumeFromWhere, ConsumeMode
from mqdb.common.retry_delays import parse_retry_delays, retry_delays_text
from mqdb.errors import GroupNotFound

if TYPE_CHECKING:
    from mqdb_client import BrokerAdmin, GroupDetails, GroupSettings, GroupSummary

app = command_group(
    """Look at consumer groups, change their settings, and set their offsets.

    A group is created by its first consumer. If the DSN lists several brokers, each broker has its own settings and
    offsets for the group, and a command works on all of these brokers.

    \b
    [bold]Examples[/bold]
      mqdb group list
      mqdb group show billing
      mqdb group set billing --retry-max-times 3
      mqdb group offset reset billing orders --to 2h --dry-run
    """
)
app.add_typer(offset, name="offset")


class _ConsumeFrom(StrEnum):
    FIRST = "first"
    LAST = "last"


_WHERE = {_ConsumeFrom.FIRST: ConsumeFromWhere.FIRST_OFFSET, _ConsumeFrom.LAST: ConsumeFromWhere.LAST_OFFSET}

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", show_default=False)]


@app.command("list", cls=Command)
def list_(context: typer.Context, broker: Brokers = None, as_json: Json = False) -> None:
    """List all groups, with their live members and the messages that they have yet to consume.

    The lag in seconds is the age of the oldest unconsumed message. Waiting messages have failed and wait for their
    retry; the lag does not include them.

    \b
    [bold]Examples[/bold]
      mqdb group list
      mqdb group list --json | jq 'select(.lag > 1000)'
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.groups.list(), broker)
    print_answers(admin, answers, _summary, as_json, "There are no groups yet.", ordered=True)


def _summary(group: "GroupSummary") -> Row:
    return {
        "group": group.group,
        "members": group.members,
        "model": group.message_model,
        "topics": group.topics,
        "lag": group.lag,
        "lag_seconds": seconds(group.lag_seconds),
        "waiting": group.waiting,
    }


@app.command(cls=Command)
def show(context: typer.Context, name: GroupName, broker: Brokers = None, as_json: Json = False) -> None:
    """Show a group: its settings, subscriptions, members, and how far it has read each queue.

    The column "waiting" counts the messages of a queue that failed and wait for their retry. Once the retry is due,
    they are part of the lag of the group's retry topic.

    \b
    [bold]Examples[/bold]
      mqdb group show billing
      mqdb group show billing --json | jq '.queues[] | select(.owner == null)'
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.groups.show(name), broker).without(GroupNotFound)
    described = [
        {"group": found.group, **of_broker(admin, broker_name), **_settings(found.settings), **_parts(found)}
        for broker_name, found in answers.results.items()
    ]
    if as_json:
        for each in described:
            print(json_of(each))
    elif described:
        _print_group(described)
    answers.check()


_PARTS = {
    "subscriptions": "The group has no subscriptions.",
    "members": "The group has no live members.",
    "queues": "The group has not read any queue yet.",
}


def _settings(settings: "GroupSettings") -> Row:
    return {
        "consume": settings.consume_enable,
        "broadcast": settings.consume_broadcast_enable,
        "retry_queues": settings.retry_queue_nums,
        "retry_max_times": settings.retry_max_times,
        "consume_mode": settings.consume_mode.lower(),
        "orderly": settings.consume_message_orderly,
        "retry_delays": retry_delays_text(settings.retry_delays),
        "consume_from": "first" if settings.consume_from_where is ConsumeFromWhere.FIRST_OFFSET else "last",
        "subscription_version": settings.subscription_version,
        "created": settings.created_at,
    }


def _parts(found: "GroupDetails") -> dict[str, list[Row]]:
    return {
        "subscriptions": [
            {"topic": each.topic, "type": each.expression_type, "expression": each.expression, "version": each.version}
            for each in found.subscriptions
        ],
        "members": [
            {
                "client_id": each.client_id,
                "model": each.message_model,
                "queues": each.queues,
                "since": each.registered_at,
                "silent_seconds": seconds(each.silent_seconds),
                "language": each.language,
                "version": each.version,
            }
            for each in found.members
        ],
        "queues": [
            {
                "topic": each.topic,
                "queue": each.queue_id,
                "next_offset": each.next_offset,
                "max_offset": each.max_offset,
                "lag": each.lag,
                "lag_seconds": seconds(each.lag_seconds),
                "waiting": each.waiting,
                "in_flight": each.in_flight,
                "owner": each.owner,
                "epoch": each.epoch,
                "updated": each.updated_at,
            }
            for each in found.progress
        ],
    }


def _print_group(described: list[dict[str, Any]]) -> None:
    """Print a line of settings for each broker, then one table for each part, with the rows of all brokers."""
    from mqdb.cli.console import standard_output

    console = standard_output()
    for each in described:
        values = {name: value for name, value in each.items() if name != "group" and name not in _PARTS}
        console.print(f"[bold]{each['group']}[/bold]: {in_a_line(values)}")
    for part, nothing in _PARTS.items():
        rows = of_part(described, part)
        console.print()
        console.print(table_of(rows) if rows else nothing)


@app.command("set", cls=Command)
def set_(
    context: typer.Context,
    name: GroupName,
    retry_max_times: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum number of redeliveries before a message goes to the DLQ.", min=0),
    ] = None,
    retry_queues: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of queues of the group's retry topic, used when that topic is created.", min=1
        ),
    ] = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether the group's members receive messages.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Whether the group's members may consume by broadcasting."),
    ] = None,
    consume_mode: Annotated[
        ConsumeMode | None,
        typer.Option(
            case_sensitive=False,
            help="Whether members own queues, or pop messages from all queues and acknowledge each message.",
        ),
    ] = None,
    orderly: Annotated[
        bool | None,
        typer.Option(
            "--orderly/--no-orderly",
            help="With pop: whether a queue delivers nothing more until its popped messages are acknowledged.",
        ),
    ] = None,
    retry_delays: Annotated[
        str | None,
        typer.Option(
            metavar="DELAYS",
            help="The delay before each retry: a list such as 1s,5s,1m; or 1s..10m, which doubles the delay each "
            "time; or ladder for the delay levels.",
        ),
    ] = None,
    consume_from: Annotated[
        _ConsumeFrom | None,
        typer.Option(
            help="Where to start in a topic if the consumer does not say: RocketMQ 5's SDKs, and pops in SQL."
        ),
    ] = None,
    broker: Brokers = None,
) -> None:
    """Change settings of a group; the group is created if it does not exist.

    Settings that are not given keep their values. It works like mqadmin updateSubGroup.

    \b
    [bold]Examples[/bold]
      mqdb group set billing --retry-max-times 3
      mqdb group set billing --no-consume
      mqdb group set workers --consume-mode pop --retry-delays 1s..10m
    """
    delays = None if retry_delays is None else parse_retry_delays(retry_delays)
    where = None if consume_from is None else _WHERE[consume_from]
    with administering(context) as admin:

        def set_on(one: "BrokerAdmin") -> None:
            changed = one.groups.update(
                name,
                retry_max_times=retry_max_times,
                retry_queue_nums=retry_queues,
                consume_enable=consume,
                consume_broadcast_enable=broadcast,
                consume_mode=consume_mode,
                consume_message_orderly=orderly,
                retry_delays=delays,
                consume_from_where=where,
            )
            now = in_a_line(dict(list(_settings(changed).items())[:8]))
            print(f"group {name}{on(admin, one.name)}: {now}")

        admin.on_each(set_on, broker).check()


@app.command(cls=Command)
def delete(
    context: typer.Context,
    name: GroupName,
    with_topics: Annotated[
        bool,
        typer.Option("--with-topics", help="Also delete the group's retry topic and its DLQ, with all their messages."),
    ] = False,
    broker: Brokers = None,
    yes: Yes = False,
) -> None:
    """Delete a group with its offsets and subscriptions. The command fails if the group has live members.

    A consumer that joins it later forms a new group, with a starting point
    set by that consumer. If the retry topic is kept,
    messages that wait for a retry still go to it, but not to the new group. If it is deleted, they are skipped when
    they are due.

    \b
    [bold]Examples[/bold]
      mqdb group delete billing
      mqdb group delete billing --with-topics --yes
    """

    with administering(context) as admin:

        def delete_on(one: "BrokerAdmin") -> None:
            gone = one.groups.delete(name, with_topics=with_topics)
            topics = f", and topic {' and '.join(map(shlex.quote, gone))}" if gone else ""
            print(f"group {name} is deleted{on(admin, one.name)}{topics}")

        chosen = admin.chosen(broker)
        if not yes:
            what = f"group {name} and all its offsets" + (", its retries and its DLQ" if with_topics else "")
            where = f" on {', '.join(one.name for one in chosen)}" if has_several(admin) else ""
            confirm(f"Delete {what}{where}?")
        admin.on_each(delete_on, broker).without(GroupNotFound).check()
