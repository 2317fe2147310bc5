"""`mqdb group offset reset | clone`: set the offsets of a group, on all brokers that the settings name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mqdb.cli.confirm import check_somebody_is_there, confirm
from mqdb.cli.offset_target import parse_target
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, Yes, print_answers
from mqdb.errors import GroupNotFound, TopicNotFound

if TYPE_CHECKING:
    from mqdb_client import BrokerAdmin, OffsetChange

app = command_group(
    """Set how far a group has read: back, to consume messages again, or forward, to skip them.

    The group's members may be running: they drop the messages that they have fetched, and continue at the new offsets.
    [bold]mqdb operation list[/bold] shows each change.

    \b
    [bold]Examples[/bold]
      mqdb group offset reset billing orders --to 2026-07-14T09:30+02:00
      mqdb group offset clone billing billing-test
    """
)

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would change, without changing it.")]
Reason = Annotated[
    str,
    typer.Option("--reason", metavar="TEXT", help="The reason, which is stored with the change.", show_default=False),
]

#: Changes offsets on one broker; with True it only returns the changes that would be made.
Change: TypeAlias = "Callable[[BrokerAdmin, bool], list[OffsetChange]]"


@app.command(cls=Command)
def reset(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic whose offsets are reset.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time: 2026-07-14T09:30+02:00, 2h for two hours ago, or @ and "
            "milliseconds since 1970.",
            show_default=False,
        ),
    ],
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", metavar="N", help="Only this queue.", min=0, show_default=False)
    ] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    broker: Brokers = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a group continue at another place in a topic.

    For a time, this is the first message stored at or after that time. The command shows the changes and asks for
    confirmation, unless [bold]--yes[/bold] is given.

    \b
    [bold]Examples[/bold]
      mqdb group offset reset billing orders --to earliest --dry-run
      mqdb group offset reset billing orders --to 2h --reason 'wrong prices'
      mqdb group offset reset billing orders --to 4711 --queue 3 --yes
      mqdb group offset reset billing orders --to latest
    """
    target = parse_target(to)

    def change(one: "BrokerAdmin", is_dry: bool) -> "list[OffsetChange]":
        return one.offsets.reset(group, topic, target, queue_id=queue, reason=reason, dry_run=is_dry)

    _take(context, change, broker, as_json, dry_run, None if yes else f"Reset group {group} in topic {topic} to {to}?")


@app.command(cls=Command)
def clone(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group whose offsets are copied.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that gets the offsets.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="Only this topic; may be repeated. If not given, all topics.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Clone even if TARGET has live members.")] = False,
    reason: Reason = "",
    dry_run: DryRun = False,
    broker: Brokers = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a group continue at the offsets of another group.

    TARGET is created if it does not exist; retries of SOURCE are not copied. It works like mqadmin cloneGroupOffset.

    \b
    [bold]Examples[/bold]
      mqdb group offset clone billing billing-test
      mqdb group offset clone billing billing-2 --topic orders --dry-run
    """
    question = None if yes else f"Let group {target} continue at the offsets of group {source}?"

    def change(one: "BrokerAdmin", is_dry: bool) -> "list[OffsetChange]":
        return one.offsets.clone(source, target, topic or (), force=force, reason=reason, dry_run=is_dry)

    _take(context, change, broker, as_json, dry_run, question)


def _take(
    context: typer.Context,
    change: Change,
    brokers: list[str] | None,
    as_json: bool,
    dry_run: bool,
    question: str | None,
) -> None:
    """Change offsets, after asking the question, if any; a dry run only shows the changes."""
    with administering(context) as admin:
        admin.chosen(brokers)

        def show(nothing: str, *, is_dry: bool) -> None:
            answers = admin.on_each(lambda one: change(one, is_dry), brokers)
            # If one broker lacks a topic, it does not matter as long as another broker has it.
            answers = answers.without(TopicNotFound, GroupNotFound)
            print_answers(admin, answers, _described, as_json, nothing, broker_at=0)

        if question is not None and not dry_run:
            check_somebody_is_there(question)
        if question is not None or dry_run:
            show("Nothing would change.", is_dry=True)
        if dry_run:
            return
        if question is not None:
            confirm(question)
        show("Nothing has changed.", is_dry=False)


def _described(change: "OffsetChange") -> Row:
    return {
        "topic": change.topic,
        "queue": change.queue_id,
        "old_offset": change.old_offset,
        "new_offset": change.new_offset,
        "come_again": change.repeated,
        "skipped": change.skipped,
    }
