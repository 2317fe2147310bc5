"""`mqdb cron add | list | pause | resume | remove`: recurring sends."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.records import parse_property
from mqdb.cli.rows import Brokers, Json, Row, print_answers, print_done
from mqdb.cli.times import shown_time
from mqdb.common.message import Message
from mqdb.errors import CronNotFound, ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import Admin, BrokerAdmin, CronSummary

app = command_group(
    """Send a message repeatedly, at the times of a cron expression.

    One message is sent for each time, exactly once, by whichever mqdb serve leads. The properties MQDB_CRON_NAME and
    MQDB_CRON_TIME of a message name its cron and its time.

    \b
    [bold]Examples[/bold]
      mqdb cron add tick --cron '*/5 * * * *' --topic orders --body tick
      mqdb cron list
      mqdb cron pause tick
      mqdb cron remove tick
    """
)

CronName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the recurring send.", show_default=False)]


@app.command(cls=Command)
def add(
    context: typer.Context,
    name: CronName,
    text: Annotated[
        str,
        typer.Option(
            "--cron",
            metavar="TEXT",
            help="Minute, hour, day of month, month and day of week, as in crontab, with an optional field for the "
            "second before them; or @hourly, @daily, @weekly, @monthly, @yearly.",
            show_default=False,
        ),
    ],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic to send to.", show_default=False)],
    body: Annotated[str | None, typer.Option("--body", "-b", metavar="TEXT", help="The body.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="A file whose current content becomes the body.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Tag of each message.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", "-k", help="Key of each message; may be repeated.")] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of each message; may be repeated."),
    ] = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="All messages go to the queue of this key, in order.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="IANA name of the time zone of the expression.")
    ] = "UTC",
    catch_up: Annotated[
        Literal["once", "all", "none"],
        typer.Option(
            help="Messages for times that passed while no broker was running: one message for the latest time, one "
            "for each time, oldest first, or no message.",
        ),
    ] = "once",
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The broker that sends the messages, if there are several.", show_default=False
        ),
    ] = None,
) -> None:
    """Add a recurring send. The first message is sent at the next time that matches.

    A day of the week is a number from 0 to 7, where both 0 and 7 are Sunday, or a name from sun to sat; the range
    sat-mon wraps around the end of the week. L as the day of the month is its last day; friL as the day of the week is
    the last Friday of the month, and mon#2 the second Monday. If both day fields are restricted, a day matches if
    either field matches. A cron with fixed hours fires once at each local time: a time that is skipped when clocks go
    forward fires at the moment of the change, and a time that occurs twice fires the first time only. A cron that runs
    every hour keeps its pace when the clocks change. With [bold]--catch-up none[/bold], a message may still be up to a
    minute late.

    \b
    [bold]Examples[/bold]
      mqdb cron add tick --cron '*/5 * * * *' --topic orders --body tick
      mqdb cron add report --cron '30 7 * * mon-fri' --timezone Europe/Berlin
          --topic reports --file report.json --tag daily --property origin=hq
      mqdb cron add close --cron '0 18 L * *' --topic books --body close
      mqdb cron add probe --cron '*/10 * * * * *' --topic probes --body x
      mqdb cron add rates --cron @hourly --topic rates --body x --catch-up none
    """
    from mqdb_client import CatchUp

    message = Message(topic, _body(body, file), tag, tuple(key or ()), dict(map(parse_property, prop or ())))
    with administering(context) as admin:
        crons = _only(admin, broker).crons
        next_at = crons.add(
            name, text, message, timezone=timezone, sharding_key=sharding_key, catch_up=CatchUp(catch_up)
        )
    print(f"cron {name} sends to topic {topic}, first at {shown_time(next_at)}")


def _body(text: str | None, file: Path | None) -> bytes | str:
    if text is not None and file is not None:
        raise ParameterInvalid("file", str(file), "give --body or --file, but not both")
    if file is None:
        return text or ""
    try:
        return file.read_bytes()
    except OSError as exc:
        raise ParameterInvalid("file", str(file), exc.strerror or str(exc)) from exc


def _only(admin: "Admin", name: str | None) -> "BrokerAdmin":
    """The only broker that is to have the cron.

    If several brokers had the cron, each of them would send the message.
    """
    brokers = admin.chosen(None if name is None else [name])
    if len(brokers) > 1:
        known = ", ".join(one.name for one in brokers)
        raise ParameterInvalid(
            "broker", None, f"only one broker may send the messages; add --broker with one of {known}"
        )
    return brokers[0]


@app.command("list", cls=Command)
def list_(context: typer.Context, broker: Brokers = None, as_json: Json = False) -> None:
    """List all recurring sends, with their next times.

    [bold]skipped[/bold] counts the times for which no message was sent because the topic no longer existed.

    \b
    [bold]Examples[/bold]
      mqdb cron list
      mqdb cron list --json | jq 'select(.skipped > 0)'
    """
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.crons.list(), broker)
    print_answers(admin, answers, _described, as_json, "There are no recurring sends yet.", ordered=True)


def _described(cron: "CronSummary") -> Row:
    return {
        "name": cron.name,
        "cron": cron.cron,
        "timezone": cron.timezone,
        "topic": cron.topic,
        "catch_up": cron.catch_up,
        "paused": cron.is_paused,
        "next": None if cron.is_paused else cron.next_at,
        "last": cron.last_fired_at,
        "sent": cron.sent,
        "skipped": cron.skipped,
        "application": cron.application,
    }


@app.command(cls=Command)
def pause(context: typer.Context, name: CronName, broker: Brokers = None) -> None:
    """Stop a recurring send from firing until it is resumed.

    \b
    [bold]Examples[/bold]
      mqdb cron pause tick
      mqdb cron pause tick --broker broker-b
    """
    with administering(context) as admin:
        paused = admin.on_each(lambda one: one.crons.pause(name), broker).without(CronNotFound)
    print_done(admin, paused, lambda _: f"cron {name} is paused")


@app.command(cls=Command)
def resume(context: typer.Context, name: CronName, broker: Brokers = None) -> None:
    """Let a paused recurring send fire again, starting with its next time.

    Times that passed while it was paused are not caught up.

    \b
    [bold]Examples[/bold]
      mqdb cron resume tick
    """
    with administering(context) as admin:
        resumed = admin.on_each(lambda one: one.crons.resume(name), broker).without(CronNotFound)
    print_done(admin, resumed, lambda next_at: f"cron {name} fires next at {shown_time(next_at)}")


@app.command(cls=Command)
def remove(context: typer.Context, name: CronName, broker: Brokers = None) -> None:
    """Remove a recurring send; messages that it has already sent remain.

    \b
    [bold]Examples[/bold]
      mqdb cron remove tick
    """
    with administering(context) as admin:
        removed = admin.on_each(lambda one: one.crons.remove(name), broker).without(CronNotFound)
    print_done(admin, removed, lambda _: f"cron {name} is removed")
