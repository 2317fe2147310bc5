"""`mqdb transaction list | resolve`: half messages, on all brokers in the settings."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.confirm import confirm
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, Yes, print_answers, print_done
from mqdb.errors import HalfMessageNotFound

if TYPE_CHECKING:
    from mqdb_client import HalfMessage

app = command_group(
    """Look at half messages, and resolve those whose producers do not answer.

    A message of a transaction producer waits in RMQ_SYS_TRANS_HALF_TOPIC until its local transaction is committed or
    rolled back. In SQL, half messages are in the view [bold]mqdb.half_messages[/bold].

    \b
    [bold]Examples[/bold]
      mqdb transaction list
      mqdb transaction resolve 0A0B0C0D1E2F00000000000000000001 commit
    """
)


class _State(StrEnum):
    """The states that can be selected."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"
    DISCARDED = "discarded"


class _Outcome(StrEnum):
    """The ways to resolve a half message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    RESUME = "resume"


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    state: Annotated[
        list[_State] | None,
        typer.Option(
            help="Only half messages in this state; may be repeated. If not given, unresolved half messages.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only half messages of this producer group.", show_default=False)
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Show at most this many half messages from each broker, the oldest first.")
    ] = 100,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List half messages, with their age and the number of checks sent to their producers.

    Without --state, the command lists half messages that are [bold]prepared[/bold] or were [bold]discarded[/bold],
    because of too many checks or their age.

    \b
    [bold]Examples[/bold]
      mqdb transaction list
      mqdb transaction list --group orders-service --state discarded --json
    """
    from mqdb_client import HalfState

    states = [HalfState[each.name] for each in state or (_State.PREPARED, _State.DISCARDED)]
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.transactions.list(states, group, limit), broker)
    print_answers(admin, answers, _described, as_json, "There are no such half messages.", broker_at=0)


def _described(half: "HalfMessage") -> Row:
    return {
        "transaction_id": half.transaction_id,
        "group": half.producer_group,
        "topic": half.topic,
        "state": half.state.lower().replace("_", "-"),
        "stored": half.stored_at,
        "checks": half.check_times,
        "next_check": half.check_at,
        "asked": half.check_client,
        "ended": half.ended_at,
        "log_pos": half.log_pos,
    }


@app.command(cls=Command)
def resolve(
    context: typer.Context,
    transaction_id: Annotated[str, typer.Argument(metavar="ID", help="The unique id of the half message.")],
    outcome: Annotated[_Outcome, typer.Argument(help="commit, rollback, or resume: restart the checks from 0.")],
    broker: Brokers = None,
    yes: Yes = False,
) -> None:
    """Commit or roll back a half message by hand, or resume the checks of a discarded one.

    A [bold]commit[/bold] delivers the half message; after a [bold]rollback[/bold] it is never delivered. Neither action
    can be undone. [bold]resume[/bold] is for discarded half messages: their producers are checked again, starting from
    0 checks, as if the half messages had just been stored.

    \b
    [bold]Examples[/bold]
      mqdb transaction resolve 0A0B0C0D1E2F00000000000000000001 commit
      mqdb transaction resolve 0A0B0C0D1E2F00000000000000000001 resume --yes
    """
    from mqdb.cli.message_ids import check_id
    from mqdb_client import Resolution

    check_id(transaction_id, "mqdb transaction list")

    with administering(context) as admin:
        admin.chosen(broker)
        if not yes:
            confirm(f"{outcome.capitalize()} half message {transaction_id}?")
        ended = admin.on_each(lambda one: one.transactions.resolve(transaction_id, Resolution(outcome)), broker)
    print_done(
        admin,
        ended.without(HalfMessageNotFound),
        lambda half: f"half message {half.transaction_id} is {half.state.lower().replace('_', ' ')}",
    )
