"""`mqdb timer list | recall`: messages with a time of delivery, on all brokers that the settings name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.connection import ask_each, chosen_brokers, connected_to
from mqdb.cli.options import Command, Group, start
from mqdb.cli.rows import Brokers, Json, Row, of_broker, on, print_rows
from mqdb.errors import MqdbError, ResponseCode

if TYPE_CHECKING:
    from mqdb.broker.timers import RecallStatus
    from mqdb.dsn import BrokerDsn
    from mqdb.store.waiting_timers import WaitingTimer

app = typer.Typer(cls=Group, rich_markup_mode="rich")


class NothingRecalled(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """The message does not wait: it was delivered, or nobody knows it."""

    message: str
    reason: str
    sentence = "message {message}: {reason}"


@app.callback(invoke_without_command=True)
def timer(context: typer.Context) -> None:
    """Look at messages that wait for their time of delivery, and take one back.

    \b
    [bold]Examples[/bold]
      mqdb timer list
      mqdb timer recall 7F0000010A2B00000C0D16B4C3A20001
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only messages for this topic.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="So many of each broker.")] = 100,
    last: Annotated[bool, typer.Option("--last", help="Those that are due last, in place of the first.")] = False,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List messages that wait for their time of delivery, the first to be due first.

    \b
    [bold]Examples[/bold]
      mqdb timer list --topic orders
      mqdb timer list --last -n 10 --json
    """
    from mqdb.broker.timers import list_timers
    from mqdb.unique_id import format_unique_id

    settings = start(context)

    def timers_on(one: "BrokerDsn") -> "list[WaitingTimer]":
        with connected_to(one) as connection:
            return list_timers(connection, topic, limit, last=last)

    answers = ask_each(chosen_brokers(settings, broker), timers_on)
    found = [(each, name) for name, timers in answers.results.items() for each in timers]
    found.sort(key=lambda pair: pair[0].due_at, reverse=last)
    rows: list[Row] = [
        {
            "due": each.due_at,
            **of_broker(settings, name),
            "topic": each.topic,
            "queue_id": each.queue_id,
            "message_id": format_unique_id(each.msg_id),
            "tag": each.tags,
            "keys": each.keys,
            "sent": each.store_time,
        }
        for each, name in found
    ]
    if rows or not answers.failures:
        print_rows(rows, as_json, "No message waits for a time of delivery.")
    answers.check()


@app.command(cls=Command)
def recall(
    context: typer.Context,
    message: Annotated[
        str, typer.Argument(metavar="HANDLE|MESSAGE_ID", help="What the send has returned.", show_default=False)
    ],
    broker: Brokers = None,
) -> None:
    """Take back a message that waits for its time of delivery.

    Fails where the message does not wait any more: it was delivered, or recalled
    before, or there is none of that id.

    \b
    [bold]Examples[/bold]
      mqdb timer recall 7F0000010A2B00000C0D16B4C3A20001
    """
    from mqdb.broker.timers import RecallStatus

    settings = start(context)
    brokers, take_back = _way_to(message, chosen_brokers(settings, broker))
    answers = ask_each(brokers, take_back)
    for one in brokers:
        if answers.results.get(one.name) is RecallStatus.RECALLED:
            print(f"recalled {message}{on(settings, one.name)}")
            return
    answers.check()
    if RecallStatus.ALREADY_DELIVERED in answers.results.values():
        raise NothingRecalled(message, "it was delivered already")
    raise NothingRecalled(message, "none of that id waits; perhaps it was recalled before")


def _way_to(
    message: str, brokers: "tuple[BrokerDsn, ...]"
) -> "tuple[list[BrokerDsn], Callable[[BrokerDsn], RecallStatus]]":
    """The brokers to ask, and how: a handle says which one it is."""
    from mqdb.broker.timers import recall as recall_handle
    from mqdb.broker.timers import recall_message
    from mqdb.errors import ParameterInvalid
    from mqdb.recall_handle import decode_handle
    from mqdb.unique_id import parse_unique_id

    try:
        unique_id = parse_unique_id(message)
    except ParameterInvalid:
        name = decode_handle(message).broker_name

        def by_handle(one: "BrokerDsn") -> "RecallStatus":
            with connected_to(one) as connection:
                return recall_handle(connection, message)

        return [one for one in brokers if one.name == name] or list(brokers), by_handle

    def by_unique_id(one: "BrokerDsn") -> "RecallStatus":
        with connected_to(one) as connection:
            return recall_message(connection, unique_id)

    return list(brokers), by_unique_id
