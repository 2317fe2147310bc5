"""`mqdb delay list | skip`: the delay levels, on all brokers that the settings name."""

from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.confirm import confirm
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, Yes, on, print_answers, print_done, seconds
from mqdb.common.delay_level import DelayLevels
from mqdb.errors import NothingLost, ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import BrokerAdmin, LevelStanding

app = command_group(
    """Look at the delay levels, and restart a level that is stuck.

    Delayed messages and retries wait in the topic SCHEDULE_TOPIC_XXXX, which has one queue for each delay level, and
    are delivered in order.

    \b
    [bold]Examples[/bold]
      mqdb delay list
      mqdb delay skip 3
    """
)


@app.command("list", cls=Command)
def list_(context: typer.Context, broker: Brokers = None, as_json: Json = False) -> None:
    """List the delay levels: how many messages wait in each, when the next is due, and how late it is.

    A level with a [bold]lost offset[/bold] is stuck: its next message is missing from the log. The level does not skip
    this message by itself, and no segment is dropped while the level is stuck; [bold]mqdb delay skip[/bold] skips the
    message.

    \b
    [bold]Examples[/bold]
      mqdb delay list
      mqdb delay list --json | jq 'select(.lost_offset != null)'
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.delays.list(), broker)
    print_answers(admin, answers, _described, as_json, "There are no delay levels.", ordered=True)


def _described(standing: "LevelStanding") -> Row:
    lost, late = standing.lost, standing.late
    return {
        "level": standing.level,
        "delay": None if standing.delay is None else DelayLevels((standing.delay,)).text,
        "waiting": standing.waiting,
        "next_due": standing.due_at,
        "late_seconds": None if late is None else seconds(max(late.total_seconds(), 0.0)),
        "lost_offset": None if lost is None else lost.queue_offset,
        "lost_log_pos": None if lost is None else lost.log_pos or None,
    }


@app.command(cls=Command)
def skip(
    context: typer.Context,
    level: Annotated[int, typer.Argument(metavar="LEVEL", help="The delay level; the first is 1.", show_default=False)],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, which is stored with the change.", show_default=False)
    ] = "",
    broker: Brokers = None,
    yes: Yes = False,
) -> None:
    """Let a delay level continue after a message that is missing from the log.

    The command skips that one message, which will never be delivered, and nothing else; it fails if the next message of
    the level is in the log.

    \b
    [bold]Examples[/bold]
      mqdb delay list
      mqdb delay skip 3
      mqdb delay skip 3 --broker broker-b --reason 'bad disk' --yes
    """

    def skip_on(one: "BrokerAdmin") -> int:
        offset = found.results[one.name].queue_offset
        one.delays.skip(level, offset, reason=reason)
        return offset

    with administering(context) as admin:
        found = admin.on_each(lambda one: one.delays.find_lost(level), broker).without(NothingLost, ParameterInvalid)
        if not found.results:
            found.check()
        if not yes:
            what = " and ".join(f"offset {lost.queue_offset}{on(admin, name)}" for name, lost in found.results.items())
            confirm(f"Never deliver the lost message of delay level {level} at {what}?")
        skipped = admin.on_each(skip_on, list(found.results))
        print_done(admin, skipped, lambda offset: f"delay level {level} goes on behind offset {offset}")
    found.check()
