"""`mqdb timer list | recall`: messages with a delivery time, on all brokers in the settings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, on, print_answers
from mqdb.errors import MqdbError, ParameterInvalid, ResponseCode

if TYPE_CHECKING:
    from mqdb_client import Admin, WaitingTimer

app = command_group(
    """Look at messages that wait for their delivery time, and recall a message.

    \b
    [bold]Examples[/bold]
      mqdb timer list
      mqdb timer recall 7F0000010A2B00000C0D16B4C3A20001
    """
)


class NothingRecalled(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """The message is not waiting: it was already delivered, or its id is unknown."""

    message: str
    reason: str
    sentence = "message {message}: {reason}"


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only messages for this topic.", show_default=False)
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many messages from each broker.")
    ] = 100,
    last: Annotated[bool, typer.Option("--last", help="Show the messages that are due last instead of first.")] = False,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List messages that wait for their delivery time, earliest first.

    \b
    [bold]Examples[/bold]
      mqdb timer list --topic orders
      mqdb timer list --last -n 10 --json
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.timers.list(topic, limit, last=last), broker)
    nothing = "No messages are waiting for a delivery time."
    print_answers(admin, answers, _described, as_json, nothing, ordered=True, descending=last)


def _described(timer: "WaitingTimer") -> Row:
    from mqdb.common.unique_id import format_unique_id

    return {
        "due": timer.due_at,
        "topic": timer.topic,
        "queue_id": timer.queue_id,
        "message_id": format_unique_id(timer.msg_id),
        "tag": timer.tags,
        "keys": timer.keys,
        "sent": timer.store_time,
    }


@app.command(cls=Command)
def recall(
    context: typer.Context,
    message: Annotated[
        str,
        typer.Argument(
            metavar="HANDLE|MESSAGE_ID",
            help="The handle or the message id from the result of the send.",
            show_default=False,
        ),
    ],
    broker: Brokers = None,
) -> None:
    """Recall a message that waits for its delivery time.

    The command fails if the message is no longer waiting, because it was delivered or recalled, or if its id is
    unknown.

    \b
    [bold]Examples[/bold]
      mqdb timer recall 7F0000010A2B00000C0D16B4C3A20001
    """
    from mqdb_client import RecallStatus

    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.timers.recall(message), _asked(admin, message, broker))
    for broker_name, status in answers.results.items():
        if status is RecallStatus.RECALLED:
            print(f"recalled {message}{on(admin, broker_name)}")
            return
    answers.check()
    if RecallStatus.ALREADY_DELIVERED in answers.results.values():
        raise NothingRecalled(message, "it was already delivered")
    raise NothingRecalled(message, "no message with this id is waiting; it may have been recalled")


def _asked(admin: "Admin", message: str, names: Sequence[str] | None) -> Sequence[str] | None:
    """The brokers to search; a handle names the broker that has the message."""
    from mqdb.common.recall_handle import decode_handle
    from mqdb.common.unique_id import parse_unique_id

    try:
        parse_unique_id(message)
    except ParameterInvalid:
        name = decode_handle(message).broker_name
        if name in (one.name for one in admin.chosen(names)):
            return [name]
    return names
