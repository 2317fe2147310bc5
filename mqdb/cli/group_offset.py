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
    """Set how far a group has read: back, to consume again, or forward, to leave out.

    The group's members may be running: they drop what they have in hand and go
    on at the new offsets. [bold]mqdb operation list[/bold] tells what was changed.

    \b
    [bold]Examples[/bold]
      mqdb group offset reset billing orders --to 2026-07-14T09:30+02:00
      mqdb group offset clone billing billing-test
    """
)

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would change, and change nothing.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the change.", show_default=False)]

#: Changes offsets on one broker; with True it only says what would change.
Change: TypeAlias = "Callable[[BrokerAdmin, bool], list[OffsetChange]]"


@app.command(cls=Command)
def reset(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that it reads.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, or from when on: 2026-07-14T09:30+02:00, 2h for ago, @ and "
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
    """Have a group go on somewhere else in a topic.

    For a time, that is the first message that was stored then or later. Shows
    what will change and asks, unless with [bold]--yes[/bold].

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
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group with the offsets.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that gets them.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME", help="Only this topic; may be repeated. Unset, all.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also while TARGET has live members.")] = False,
    reason: Reason = "",
    dry_run: DryRun = False,
    broker: Brokers = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have a group continue at the offsets of another group.

    TARGET is created if it does not exist; the retries of SOURCE stay its own.
    Like mqadmin cloneGroupOffset.

    \b
    [bold]Examples[/bold]
      mqdb group offset clone billing billing-test
      mqdb group offset clone billing billing-2 --topic orders --dry-run
    """
    question = None if yes else f"Have group {target} go on where group {source} stands?"

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
    """Change offsets, after the question if there is one; a dry run only shows what would change."""
    with administering(context) as admin:
        admin.chosen(brokers)

        def show(nothing: str, *, is_dry: bool) -> None:
            answers = admin.on_each(lambda one: change(one, is_dry), brokers)
            # A topic that one broker lacks does not matter if another one has it.
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
