"""`mqdb group offset reset | clone | history`: where a group goes on, on all brokers that the settings name."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mqdb.cli.confirm import check_somebody_is_there, confirm
from mqdb.cli.connection import Answers, ask_each, chosen_brokers, connected_to
from mqdb.cli.offset_target import parse_target
from mqdb.cli.options import Command, Group, start
from mqdb.cli.rows import Brokers, Json, Row, Yes, of_broker, print_rows
from mqdb.errors import GroupNotFound, MqdbError, TopicNotFound

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from mqdb.dsn import BrokerDsn
    from mqdb.settings import Settings
    from mqdb.store.offset_audit import AuditRecord, OffsetChange

app = typer.Typer(cls=Group, rich_markup_mode="rich")

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would change, and change nothing.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the change.", show_default=False)]

#: Does it on one broker, or with True only says what it would do.
Change: TypeAlias = "Callable[[Connection, bool], Sequence[OffsetChange]]"


@app.callback(invoke_without_command=True)
def offset(context: typer.Context) -> None:
    """Set how far a group has read: back, to consume again, or forward, to leave out.

    The group's members may be running: they drop what they have in hand and go
    on at the new offsets. Each change is kept in mqdb.offset_audit.

    \b
    [bold]Examples[/bold]
      mqdb group offset reset billing orders --to 2026-07-14T09:30+02:00
      mqdb group offset clone billing billing-test
      mqdb group offset history billing
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


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
    from mqdb.broker.offset_reset import reset_offsets
    from mqdb.cli.reader import tend_dispatch

    settings = start(context)
    target = parse_target(to)

    def change(connection: "Connection", is_dry: bool) -> "Sequence[OffsetChange]":
        tend_dispatch(connection)  # what has been sent lies before the end
        return reset_offsets(connection, group, topic, target, queue_id=queue, reason=reason, dry_run=is_dry)

    steps = _Steps(settings, chosen_brokers(settings, broker), change, (TopicNotFound, GroupNotFound), as_json)
    steps.take(dry_run, None if yes else f"Reset group {group} in topic {topic} to {to}?")


@app.command(cls=Command)
def clone(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The group that has come so far.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The group that is to go on there.")],
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
    """Have a group go on where another one stands.

    TARGET is made where there is none; the retries of SOURCE stay its own. As
    with mqadmin cloneGroupOffset.

    \b
    [bold]Examples[/bold]
      mqdb group offset clone billing billing-test
      mqdb group offset clone billing billing-2 --topic orders --dry-run
    """
    from mqdb.broker.offset_reset import clone_offsets

    settings = start(context)

    def change(connection: "Connection", is_dry: bool) -> "Sequence[OffsetChange]":
        return clone_offsets(connection, source, target, topic or (), force=force, reason=reason, dry_run=is_dry)

    steps = _Steps(settings, chosen_brokers(settings, broker), change, (TopicNotFound, GroupNotFound), as_json)
    steps.take(dry_run, None if yes else f"Have group {target} go on where group {source} stands?")


@app.command(cls=Command)
def history(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)],
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Show which offsets of a group were set, when, by whom and why; the newest first.

    \b
    [bold]Examples[/bold]
      mqdb group offset history billing
      mqdb group offset history billing --json | jq -r .reason
    """
    from mqdb.broker.offset_reset import offset_history

    settings = start(context)

    def history_on(one: "BrokerDsn") -> "list[AuditRecord]":
        with connected_to(one) as connection:
            return offset_history(connection, group)

    answers = ask_each(chosen_brokers(settings, broker), history_on)
    rows: list[Row] = [
        {
            "changed": each.changed_at,
            **of_broker(settings, broker_name),
            "topic": each.topic,
            "queue": each.queue_id,
            "old_offset": each.old_offset,
            "new_offset": each.new_offset,
            "actor": each.actor,
            "reason": each.reason,
        }
        for broker_name, records in answers.results.items()
        for each in records
    ]
    print_rows(rows, as_json, f"Nobody has set an offset of group {group}.")
    answers.check()


class _Steps:
    """A change of offsets from the look at it, over the question, to the deed."""

    def __init__(
        self,
        settings: "Settings",
        brokers: "Sequence[BrokerDsn]",
        change: Change,
        unknown: tuple[type[MqdbError], ...],
        as_json: bool,
    ) -> None:
        """`unknown` are the errors that do not matter on one broker as long as another one knows better."""
        self._settings = settings
        self._brokers = brokers
        self._change = change
        self._unknown = unknown
        self._as_json = as_json

    def take(self, dry_run: bool, question: str | None) -> None:
        """Do it, after the question if there is one. Raises what keeps it from that."""
        if dry_run:
            self._print(self._on_each(is_dry=True), "Nothing would change.")
            return
        if question is not None:
            self._ask(question)
        self._print(self._on_each(is_dry=False), "Nothing has changed.")

    def _ask(self, question: str) -> None:
        check_somebody_is_there(question)
        self._print(self._on_each(is_dry=True), "Nothing would change.")
        confirm(question)

    def _on_each(self, *, is_dry: bool) -> "Answers[Sequence[OffsetChange]]":
        def on_one(one: "BrokerDsn") -> "Sequence[OffsetChange]":
            with connected_to(one) as connection:
                return self._change(connection, is_dry)

        return ask_each(self._brokers, on_one).without(*self._unknown)

    def _print(self, answers: "Answers[Sequence[OffsetChange]]", nothing: str) -> None:
        rows: list[Row] = [
            {
                **of_broker(self._settings, broker_name),
                "topic": each.topic,
                "queue": each.queue_id,
                "old_offset": each.old_offset,
                "new_offset": each.new_offset,
                "come_again": each.repeated,
                "skipped": each.skipped,
            }
            for broker_name, changes in answers.results.items()
            for each in changes
        ]
        if rows or not answers.failures:
            print_rows(rows, self._as_json, nothing)
        answers.check()
