"""`mqdb topic create | list | show | set | delete`, on all brokers in the settings."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.confirm import confirm
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
    print_done,
    table_of,
)
from mqdb.common.topic import MessageType, Perm, TopicConfig, is_group_topic, is_system_topic
from mqdb.errors import NothingToDelete, ParameterInvalid, TopicInUse, TopicNotFound

if TYPE_CHECKING:
    from mqdb_client import BrokerAdmin, QueueProgress, QueueStats, TopicUses, Unread

app = command_group(
    """Create, list, show, change and delete topics.

    If the DSN lists several brokers, a command works on all of them. If one broker cannot be reached, the command still
    works on the others.

    \b
    [bold]Examples[/bold]
      mqdb topic create orders --queues 16
      mqdb topic show orders
      mqdb topic set orders --queues 32
      mqdb topic list --broker broker-b
    """
)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]


@app.command(cls=Command)
def create(
    context: typer.Context,
    name: TopicName,
    queues: Annotated[int, typer.Option(help="Number of queues for writing and for reading.")] = 8,
    read_queues: Annotated[
        int | None, typer.Option(help="Number of queues for reading, if it differs from --queues.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(help="Number of queues for writing, if it differs from --queues.")
    ] = None,
    perm: Annotated[int, typer.Option(help="Sum of 4 (readable) and 2 (writable).")] = 6,
    order: Annotated[
        bool,
        typer.Option("--order", help="Ask producers to send all messages with the same sharding key to one queue."),
    ] = False,
    message_type: Annotated[
        MessageType,
        typer.Option("--type", help="The type of messages for which the topic is meant.", case_sensitive=False),
    ] = MessageType.NORMAL,
    broker: Brokers = None,
) -> None:
    """Create a topic. Creating the topic again with the same options changes nothing.

    If the DSN lists several brokers, the topic is created with this number of queues on each broker, as with mqadmin
    updateTopic -c, or only on the brokers named by [bold]--broker[/bold]. Messages are sent to the queues of all
    brokers that have the topic.

    \b
    [bold]Examples[/bold]
      mqdb topic create orders
      mqdb topic create payments --queues 16 --order --type FIFO
      mqdb topic create orders --broker broker-a --broker broker-c
    """

    with administering(context) as admin:
        made = admin.on_each(
            lambda one: one.topics.create(
                name,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=perm,
                order=order,
                message_type=message_type,
            ),
            broker,
        )
    print_done(admin, made, lambda config: f"topic {name} has {config.write_queue_nums} queues")


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Include the topics of the broker and of groups.")] = False,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List all topics.

    \b
    [bold]Examples[/bold]
      mqdb topic list
      mqdb topic list --json | jq -r .topic
    """

    def topics_on(one: "BrokerAdmin") -> list[TopicConfig]:
        return [
            config
            for config in one.topics.list()
            if everything or not (is_system_topic(config.name) or is_group_topic(config.name))
        ]

    with administering(context) as admin:
        answers = admin.on_each(topics_on, broker)
    print_answers(admin, answers, _described, as_json, "There are no topics yet.", ordered=True)


@app.command(cls=Command)
def show(context: typer.Context, name: TopicName, broker: Brokers = None, as_json: Json = False) -> None:
    """Show a topic: its queues, and how far each group has read them.

    \b
    [bold]Examples[/bold]
      mqdb topic show orders
      mqdb topic show orders --json | jq .groups
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.topics.show(name), broker).without(TopicNotFound)
    described = [
        {"topic": name, **of_broker(admin, broker_name), **_described(found.config)}
        | {"queues": _queues(found.queues), "groups": _groups(found.progress)}
        for broker_name, found in answers.results.items()
    ]
    if as_json:
        for each in described:
            print(json_of(each))
    elif described:
        _print_topic(described)
    answers.check()


def _queues(stats: "Sequence[QueueStats]") -> list[Row]:
    return [
        {
            "queue": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "last_stored": queue.last_store_time,
        }
        for queue in stats
    ]


def _groups(progress: "Sequence[QueueProgress]") -> list[Row]:
    return [
        {
            "group": one.group,
            "queue": one.queue_id,
            "next_offset": one.next_offset,
            "lag": one.lag,
            "waiting": one.waiting,
            "owner": one.owner,
        }
        for one in progress
    ]


def _print_topic(described: list[Row]) -> None:
    """Print a line of settings for each broker, then the queues of all brokers, then the groups."""
    from mqdb.cli.console import standard_output

    console = standard_output()
    for each in described:
        values = {name: value for name, value in each.items() if name not in ("topic", "queues", "groups")}
        console.print(f"[bold]{each['topic']}[/bold]: {in_a_line(values)}")
    console.print()
    console.print(table_of(of_part(described, "queues")))
    console.print()
    groups = of_part(described, "groups")
    console.print(table_of(groups) if groups else "No group has read this topic yet.")


@app.command("set", cls=Command)
def set_(
    context: typer.Context,
    name: TopicName,
    queues: Annotated[
        int | None, typer.Option(metavar="N", help="Number of queues for writing and for reading.")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option(metavar="N", help="Number of queues for reading, if it differs from --queues.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(metavar="N", help="Number of queues for writing, if it differs from --queues.")
    ] = None,
    perm: Annotated[int | None, typer.Option(metavar="N", help="Sum of 4 (readable) and 2 (writable).")] = None,
    order: Annotated[
        bool | None,
        typer.Option(
            "--order/--no-order",
            help="Whether producers should send all messages with the same sharding key to one queue.",
        ),
    ] = None,
    message_type: Annotated[
        MessageType | None,
        typer.Option("--type", help="The type of messages for which the topic is meant.", case_sensitive=False),
    ] = None,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Change settings of a topic. Settings that are not given keep their values.

    It works like mqadmin updateTopic. Running consumers see the change within 20 seconds, and producers within 30
    seconds. Groups that have read the topic before read added queues from the start.

    If you lower the number of queues, the messages of removed queues stay, and raising the number again brings them
    back. To consume all of them first, lower --write-queues, and lower --read-queues once [bold]mqdb topic show[/bold]
    shows no lag in the removed queues. The command lists queues that are no longer read but still have messages for a
    group.

    After a change of the number of queues, a sharding key may belong to another queue. If the order by sharding key
    matters, let consumers read all messages before the change.

    \b
    [bold]Examples[/bold]
      mqdb topic set orders --queues 16
      mqdb topic set orders --write-queues 4
      mqdb topic set orders --perm 4 --broker broker-b
    """
    changes: dict[str, Any] = {
        "queues": queues,
        "read_queues": read_queues,
        "write_queues": write_queues,
        "perm": perm,
        "order": order,
        "message_type": message_type,
    }
    if all(value is None for value in changes.values()):
        raise ParameterInvalid("topic", name, f"nothing to change; add one of {_CHANGES}")

    with administering(context) as admin:

        def set_on(one: "BrokerAdmin") -> None:
            config = one.topics.update(name, **changes)
            unread = one.topics.unread(name)
            described = _described(config)
            if as_json:
                left_out = [{"queue": each.queue_id, "group": each.group, "messages": each.messages} for each in unread]
                print(json_of({"topic": name, **of_broker(admin, one.name), **described, "unread": left_out}))
                return
            now = {setting: value for setting, value in described.items() if setting != "topic"}
            print(f"topic {name}{on(admin, one.name)}: {in_a_line(now)}")
            for note in _notes(config, unread):
                print(f"note{on(admin, one.name)}: {note}")

        admin.on_each(set_on, broker).without(TopicNotFound).check()


_CHANGES = "--queues, --read-queues, --write-queues, --perm, --order, --no-order, --type"


def _notes(config: TopicConfig, unread: "Sequence[Unread]") -> Iterator[str]:
    """Notes about messages that consumers do not get with these numbers of queues, and how to read them."""
    command = f"mqdb topic set {shlex.quote(config.name)} --read-queues"
    if unread:
        messages: Counter[str] = Counter()
        for each in unread:
            messages[each.group or "any group"] += each.messages
        whose = ", ".join(f"{group} ({count:,})" for group, count in messages.items())
        back = max(config.write_queue_nums, *(each.queue_id + 1 for each in unread))
        yield (
            f"queues from {config.read_queue_nums} on are no longer read, but have messages not consumed by {whose}; "
            f"to read them again: {command} {back}"
        )
    if config.write_queue_nums > config.read_queue_nums:
        yield (
            f"messages are written to {config.write_queue_nums} queues and read from {config.read_queue_nums}; "
            f"to read all: {command} {config.write_queue_nums}"
        )


@app.command(cls=Command)
def delete(
    context: typer.Context,
    name: TopicName,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete the topic together with the crons, scheduled messages and half messages that use it.",
        ),
    ] = False,
    broker: Brokers = None,
    yes: Yes = False,
) -> None:
    """Delete a topic, with its messages and the offsets of all groups in it.

    The command fails if the topic is used by a cron, by a message that waits for its delivery, or by an unresolved half
    message. With [bold]--force[/bold], these are deleted too: crons are removed, half messages are rolled back, and
    waiting messages are not delivered.

    \b
    [bold]Examples[/bold]
      mqdb topic delete orders
      mqdb topic delete orders --force --yes
      mqdb topic delete orders --broker broker-b
    """

    def uses_on(one: "BrokerAdmin") -> "TopicUses":
        uses = one.topics.uses(name)
        if any(uses) and not force:
            raise TopicInUse(name, *uses)
        return uses

    with administering(context) as admin:

        def delete_on(one: "BrokerAdmin") -> None:
            gone = one.topics.delete(name, force=force)
            print(f"topic {name} is deleted{on(admin, one.name)}{_with(name, gone)}")

        found = admin.on_each(uses_on, broker).without(NothingToDelete)
        if not found.results:
            found.check()
        if not yes:
            where = f" on {', '.join(found.results)}" if has_several(admin) else ""
            going = "".join(dict.fromkeys(_with(name, uses) for uses in found.results.values()))
            confirm(f"Delete topic {name} and all its messages{going}{where}?")
        admin.on_each(delete_on, list(found.results)).without(NothingToDelete).check()
    found.check()


def _with(name: str, uses: "TopicUses") -> str:
    """The objects that are deleted with a topic, in the words of the refusal."""
    return f", with {TopicInUse(name, *uses).users}" if any(uses) else ""


def _described(config: TopicConfig) -> Row:
    """The settings of a topic."""
    return {
        "topic": config.name,
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": _shown_perm(config.perm),
        "order": config.order,
        "type": str(config.message_type),
    }


def _shown_perm(perm: Perm) -> str:
    letters = {Perm.READ: "R", Perm.WRITE: "W", Perm.INHERIT: "X"}
    return "".join(letter if perm & bit else "-" for bit, letter in letters.items())
