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
    """Look at consumer groups, change them, and set their offsets.

    A group is made by its first consumer. If the DSN lists several brokers,
    each keeps the group's settings and offsets for itself, and a command works
    on all of them.

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
    """List all groups, with their live members and what they have yet to consume.

    The lag in seconds is the age of the oldest of these messages. Waiting are
    messages that failed and wait for their retry; they are not in the lag.

    \b
    [bold]Examples[/bold]
      mqdb group list
      mqdb group list --json | jq 'select(.lag > 1000)'
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.groups.list(), broker)
    print_answers(admin, answers, _summary, as_json, "There is no group yet.", ordered=True)


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

    "Waiting" counts the messages of a queue that failed and wait for their
    retry. When it is due, they are in the lag of the group's retry topic.

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
    "subscriptions": "It has no subscription.",
    "members": "No member is there.",
    "queues": "It has read no queue yet.",
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
    """A line of settings for each broker, then a table of each part with the rows of all of them."""
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
        typer.Option(metavar="N", help="Deliveries after the first, before a message goes to the DLQ.", min=0),
    ] = None,
    retry_queues: Annotated[
        int | None,
        typer.Option(metavar="N", help="Queues of its retry topic, when that is made.", min=1),
    ] = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether its members get messages.")
    ] = None,
    broadcast: Annotated[
        bool | None, typer.Option("--broadcast/--no-broadcast", help="Whether they may consume by broadcasting.")
    ] = None,
    consume_mode: Annotated[
        ConsumeMode | None,
        typer.Option(
            case_sensitive=False, help="Whether its members own queues, or pop messages of all queues and ack each."
        ),
    ] = None,
    orderly: Annotated[
        bool | None,
        typer.Option("--orderly/--no-orderly", help="With pop: whether a queue waits for the acks of its messages."),
    ] = None,
    retry_delays: Annotated[
        str | None,
        typer.Option(
            metavar="DELAYS",
            help="The wait before each retry: 1s,5s,1m, or 1s..10m, each twice the one before; ladder for the "
            "delay levels.",
        ),
    ] = None,
    consume_from: Annotated[
        _ConsumeFrom | None,
        typer.Option(
            help="The place to begin in a topic, if consumers do not say it: RocketMQ 5's SDKs, and pops in SQL."
        ),
    ] = None,
    broker: Brokers = None,
) -> None:
    """Change settings of a group; a missing group is created.

    Settings that are not given stay as they are. Like mqadmin updateSubGroup.

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
        bool, typer.Option("--with-topics", help="Delete its retry topic and its DLQ as well, with all messages.")
    ] = False,
    broker: Brokers = None,
    yes: Yes = False,
) -> None:
    """Delete a group with its offsets and subscriptions. Refused while it has live members.

    A consumer that joins it later forms a new group, which begins where the
    consumer says. Messages that wait for a retry go to the retry topic if the
    topic is kept, but not to the new group. Otherwise they are skipped when
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
