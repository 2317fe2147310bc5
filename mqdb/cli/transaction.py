"""`mqdb transaction list | resolve`: half messages, on all brokers that the settings name."""

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
    """Look at half messages, and end those whose producers say nothing.

    A message of a transaction producer waits in RMQ_SYS_TRANS_HALF_TOPIC until
    its local transaction has committed or rolled back. In SQL that is the view
    [bold]mqdb.half_messages[/bold].

    \b
    [bold]Examples[/bold]
      mqdb transaction list
      mqdb transaction resolve 0A0B0C0D1E2F00000000000000000001 commit
    """
)


class _State(StrEnum):
    """The states that one may look for."""

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
        typer.Option(help="Only in this state; may be repeated. Unset, those without an end.", show_default=False),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only of this producer group.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many of the oldest, on each broker.")] = 100,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List half messages: how old they are, and how often their producers were asked.

    Without --state those that are [bold]prepared[/bold], and those that were [bold]discarded[/bold]: asked
    about too often, or too old.

    \b
    [bold]Examples[/bold]
      mqdb transaction list
      mqdb transaction list --group orders-service --state discarded --json
    """
    from mqdb_client import HalfState

    states = [HalfState[each.name] for each in state or (_State.PREPARED, _State.DISCARDED)]
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.transactions.list(states, group, limit), broker)
    print_answers(admin, answers, _described, as_json, "There is no such half message.", broker_at=0)


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
    transaction_id: Annotated[str, typer.Argument(metavar="ID", help="The unique id of the message.")],
    outcome: Annotated[_Outcome, typer.Argument(help="commit, rollback, or resume: check it again, from 0.")],
    broker: Brokers = None,
    yes: Yes = False,
) -> None:
    """End a half message by hand, or resume the checks of a discarded one.

    A [bold]commit[/bold] delivers it; after a [bold]rollback[/bold] it is never
    delivered. Neither can be undone. [bold]resume[/bold] is for discarded half
    messages: their producers are asked again, from 0 checks, for as long as if
    they were stored now.

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
