"""`mqdb message show | find | trace`: stored messages, on all brokers in the settings."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.formats import as_json as json_line
from mqdb.cli.formats import as_text
from mqdb.cli.message_trace import trace
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, in_a_line, print_answers
from mqdb.cli.times import parse_time
from mqdb.common.printable import printable
from mqdb.errors import ParameterInvalid, QueueNotFound, TopicNotFound

if TYPE_CHECKING:
    from mqdb.common.received_message import ReceivedMessage
    from mqdb_client import Answers

app = command_group(
    """Look at stored messages. The commands change nothing and do not affect any group.

    \b
    [bold]Examples[/bold]
      mqdb message show 0A0B0C0D1E2F00000000000000000001
      mqdb message find orders --key order-17
      mqdb message trace 0A0B0C0D1E2F00000000000000000001
    """
)


@app.command(cls=Command)
def show(
    context: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The unique id of the message.", show_default=False)],
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Show everything about a message: its copies, its properties and its body.

    A message that was delayed, retried or given up is stored several times under
    the same id; every copy is shown.

    \b
    [bold]Examples[/bold]
      mqdb message show 0A0B0C0D1E2F00000000000000000001
      mqdb message show 0A0B0C0D1E2F00000000000000000001 --json | jq .properties
    """
    from mqdb.cli.message_ids import MessageNotFound, check_id

    check_id(message_id, "mqdb message find TOPIC")
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.messages.show(message_id), broker)
    copies = [copy for found in answers.results.values() for copy in found]
    if as_json:
        _print_json(answers)
    for number, copy in enumerate(() if as_json else copies):
        print("\n" * bool(number), end="")
        print(f"{copy.message_id}: {in_a_line(_described(copy))}")
        for name, value in copy.properties.items():
            print(printable(f"  {name}={value}"))
        print(printable(as_text(copy).decode(errors="backslashreplace")), end="")
    answers.check()
    if not copies:
        raise MessageNotFound(message_id)


@app.command(cls=Command)
def find(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to search.", show_default=False)],
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="Only messages with this key.", show_default=False)
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset", "-o", metavar="N", min=0, help="Start at this offset in each queue.", show_default=False
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only messages stored at or after this time: 2026-07-14T09:30, or 2h for two hours ago.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", metavar="N", min=0, help="Only in this queue.", show_default=False)
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many messages from each broker.")
    ] = 32,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Find messages of a topic by key, offset or time, roughly in the order in which they were sent.

    A search by key reads every message from its starting point on; add a time to make the search fast.

    \b
    [bold]Examples[/bold]
      mqdb message find orders --key order-17 --time 2h
      mqdb message find orders --queue 3 --offset 4711 --limit 1
      mqdb message find orders --time 2026-07-14T09:30+02:00 --json
    """
    if offset is not None and time is not None:
        raise ParameterInvalid("offset", offset, "give --offset or --time, not both")
    since = None if time is None else parse_time("time", time)
    with administering(context) as admin:
        answers = admin.on_each(
            lambda one: one.messages.find(topic, key=key, queue_id=queue, offset=offset, time=since, limit=limit),
            broker,
        ).without(TopicNotFound, QueueNotFound)
    if as_json:
        _print_json(answers)
        answers.check()
    else:
        print_answers(admin, answers, _row, as_json, "There is no such message.", broker_at=2)


app.command(cls=Command)(trace)


def _print_json(answers: "Answers[list[ReceivedMessage]]") -> None:
    for found in answers.results.values():
        for each in found:
            sys.stdout.write(json_line(each).decode())


def _row(message: "ReceivedMessage") -> Row:
    return {"stored": message.store_time, "message_id": message.message_id} | {
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "tag": message.tag,
        "keys": " ".join(message.keys),
        "bytes": len(message.stored_body),
    }


def _described(message: "ReceivedMessage") -> Row:
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "position": message.log_pos,
        "born": message.born_time,
        "stored": message.store_time,
        "from": message.born_host,
        "retries": message.reconsume_times,
    }
