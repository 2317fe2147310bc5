"""`mqdb topic create | list | show | delete`."""

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.connection import connected
from mqdb.cli.options import Command, Group, start
from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb.topic import MessageType, Perm, TopicConfig, is_system_topic

if TYPE_CHECKING:
    from rich.table import Table

    from mqdb.store.topics import TopicRoute

app = typer.Typer(cls=Group, rich_markup_mode="rich")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@app.callback(invoke_without_command=True)
def topic(context: typer.Context) -> None:
    """Create, list, show and delete topics.

    \b
    [bold]Examples[/bold]
      mqdb topic create orders --queues 16
      mqdb topic show orders
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(cls=Command)
def create(
    context: typer.Context,
    name: TopicName,
    queues: Annotated[int, typer.Option(help="Queues to write to and to read from.")] = 8,
    read_queues: Annotated[int | None, typer.Option(help="Queues to read from, where it is another number.")] = None,
    write_queues: Annotated[int | None, typer.Option(help="Queues to write to, where it is another number.")] = None,
    perm: Annotated[int, typer.Option(help="Sum of 4 (readable) and 2 (writable).")] = 6,
    order: Annotated[
        bool, typer.Option("--order", help="Ask producers to keep to the queue of a sharding key.")
    ] = False,
    message_type: Annotated[
        MessageType, typer.Option("--type", help="What the topic is meant for.", case_sensitive=False)
    ] = MessageType.NORMAL,
) -> None:
    """Create a topic. The same once more changes nothing.

    \b
    [bold]Examples[/bold]
      mqdb topic create orders
      mqdb topic create payments --queues 16 --order --type FIFO
    """
    from mqdb.broker.admin import create_topic

    settings = start(context)
    config = TopicConfig(
        name=name,
        read_queue_nums=queues if read_queues is None else read_queues,
        write_queue_nums=queues if write_queues is None else write_queues,
        perm=Perm(perm) if 0 <= perm <= 7 else perm,  # type: ignore[arg-type]  # TopicConfig refuses the rest
        order=order,
        message_type=message_type,
    )
    with connected(settings) as connection:
        create_topic(connection, config)
    print(f"topic {name} has {config.write_queue_nums} queues")


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="The topics of the broker itself, too.")] = False,
    as_json: Json = False,
) -> None:
    """List all topics.

    \b
    [bold]Examples[/bold]
      mqdb topic list
      mqdb topic list --json | jq -r .topic
    """
    from mqdb.broker.admin import list_topics

    with connected(start(context)) as connection:
        routes = [route for route in list_topics(connection) if everything or not is_system_topic(route.config.name)]
    if as_json:
        for route in routes:
            print(json.dumps(_settings(route)))
        return
    from mqdb.cli.console import standard_output

    standard_output().print(_table([_settings(route) for route in routes]) if routes else "There is no topic yet.")


@app.command(cls=Command)
def show(context: typer.Context, name: TopicName, as_json: Json = False) -> None:
    """Show a topic: its queues, and how far each group has read them.

    \b
    [bold]Examples[/bold]
      mqdb topic show orders
      mqdb topic show orders --json | jq .groups
    """
    from mqdb.broker.admin import group_progress, topic_stats
    from mqdb.broker.route import find_topic

    with connected(start(context)) as connection:
        route = find_topic(connection, name)
        if route is None:
            raise TopicNotFound(name)
        stats = topic_stats(connection, name)
        progress = group_progress(connection, name)
    queues = [
        {
            "queue": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "last_stored": _shown_time(queue.last_store_time),
        }
        for queue in stats
    ]
    max_offsets = {queue.queue_id: queue.max_offset for queue in stats}
    groups = [
        {
            "group": one.group,
            "queue": one.queue_id,
            "next_offset": one.next_offset,
            "lag": max_offsets.get(one.queue_id, one.next_offset) - one.next_offset,
            "owner": one.owner,
        }
        for one in progress
    ]
    if as_json:
        print(json.dumps(_settings(route) | {"queues": queues, "groups": groups}))
        return
    _print_topic(_settings(route), queues, groups)


def _print_topic(settings: dict[str, Any], queues: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    from mqdb.cli.console import standard_output

    console = standard_output()
    described = ", ".join(f"{_spoken(name)} {value}" for name, value in settings.items() if name != "topic")
    console.print(f"[bold]{settings['topic']}[/bold]: {described}\n")
    console.print(_table(queues))
    console.print()
    console.print(_table(groups) if groups else "No group has read it yet.")


def _table(rows: list[dict[str, Any]]) -> "Table":
    """A table of rows with the same names; numbers stand right."""
    from mqdb.cli.console import table

    numbers = [_spoken(name) for name, value in rows[0].items() if isinstance(value, int)]
    return table([_spoken(name) for name in rows[0]], [tuple(row.values()) for row in rows], right=numbers)


def _spoken(name: str) -> str:
    return name.replace("_", " ")


@app.command(cls=Command)
def delete(
    context: typer.Context,
    name: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with its messages and the offsets of all groups there.

    \b
    [bold]Examples[/bold]
      mqdb topic delete orders
      mqdb topic delete orders --yes
    """
    from mqdb.broker.admin import delete_topic

    settings = start(context)
    if not yes:
        if not sys.stdin.isatty():
            raise ParameterInvalid("delete", name, "nobody is there to confirm it; add --yes")
        typer.confirm(f"Delete topic {name} and all its messages?", abort=True)
    with connected(settings) as connection:
        if not delete_topic(connection, name):
            raise TopicNotFound(name)
    print(f"topic {name} is deleted")


def _settings(route: "TopicRoute") -> dict[str, Any]:
    config = route.config
    return {
        "topic": config.name,
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": _shown_perm(config.perm),
        "order": "yes" if config.order else "no",
        "type": str(config.message_type),
    }


def _shown_perm(perm: Perm) -> str:
    letters = {Perm.READ: "R", Perm.WRITE: "W", Perm.INHERIT: "X"}
    return "".join(letter if perm & bit else "-" for bit, letter in letters.items())


def _shown_time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone().isoformat(sep=" ", timespec="milliseconds")
