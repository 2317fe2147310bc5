"""`mqdb dlq list | show | redrive | export`, on all brokers that the settings name."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from mqdb.cli.dlq.choice import (
    ExceptionPart,
    Ids,
    Since,
    SomeGroup,
    Tag,
    Topic,
    Until,
    Where,
    filter_of,
    shown_broker,
)
from mqdb.cli.dlq.redrive import redrive
from mqdb.cli.options import Command, administering, command_group
from mqdb.cli.rows import Brokers, Json, Row, print_rows
from mqdb.errors import DeadLetterNotFound, GroupNotFound, ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import Admin, Answers, BrokerAdmin, PastRedrive, WholeDeadLetter

app = command_group(
    """Inspect messages that groups gave up, and redrive them.

    A message that has failed too often goes to the dead letter queue (DLQ) of its group, with the last exception, its
    traceback, and the message's origin.
    In SQL, the dead letters are in the view [bold]mqdb.dlq[/bold].

    \b
    [bold]Examples[/bold]
      mqdb dlq list
      mqdb dlq list billing --since 2h
      mqdb dlq show 0A0B0C0D1E2F00000000000000000001
      mqdb dlq redrive billing --exception TimeoutError --dry-run
    """
)


@app.command("list", cls=Command)
def list_(
    context: typer.Context,
    group: SomeGroup = None,
    topic: Topic = None,
    tag: Tag = None,
    since: Since = None,
    until: Until = None,
    exception: ExceptionPart = None,
    ids: Ids = None,
    where: Where = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Show at most this many dead letters from each broker, the newest first.")
    ] = 100,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """List the dead letters of a group, or count those of all groups.

    Without GROUP, the command prints one line for each group, topic and exception, with the number of dead letters and
    how many of them were redriven.

    \b
    [bold]Examples[/bold]
      mqdb dlq list
      mqdb dlq list billing
      mqdb dlq list billing --tag paid --since 2026-07-14 --exception timeout
      mqdb dlq list billing --where "error like '%price%' and redriven_at is null"
      mqdb dlq list billing --json | jq -r .error
    """
    from mqdb.cli.dlq.letters import cause_row, letter_json, letter_row, record_json

    wanted = filter_of(group, topic, tag, since, until, exception, ids, where)

    with administering(context) as admin:
        if group is None:
            causes = admin.on_each(lambda one: one.dead_letters.causes(wanted), broker)
            _print_list(admin, causes, cause_row, record_json, as_json)
        else:
            letters = admin.on_each(lambda one: one.dead_letters.list(wanted, limit), broker)
            _print_list(admin, letters.without(GroupNotFound), letter_row, letter_json, as_json)


def _print_list(
    admin: "Admin",
    answers: "Answers[list[Any]]",
    row_of: Callable[[Any], Row],
    json_of: Callable[[Any, str | None], str],
    as_json: bool,
) -> None:
    found = [(shown_broker(admin, name), each) for name, answer in answers.results.items() for each in answer]
    if as_json:
        for name, each in found:
            print(json_of(each, name))
    elif found or not answers.failures:
        rows = [({} if name is None else {"broker": name}) | row_of(each) for name, each in found]
        print_rows(rows, as_json=False, nothing="No dead letter queue has such a message.")
    answers.check()


@app.command(cls=Command)
def show(
    context: typer.Context,
    message_id: Annotated[
        str, typer.Argument(metavar="MESSAGE_ID", help="The unique id of the message.", show_default=False)
    ],
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Show everything about a dead letter: origin, exception, traceback, body, redrives.

    If several groups gave up the message, or one group did several times, each dead letter is shown, newest first. mqdb
    dlq list GROUP prints the ids.

    \b
    [bold]Examples[/bold]
      mqdb dlq show 0A0B0C0D1E2F00000000000000000001
      mqdb dlq show 0A0B0C0D1E2F00000000000000000001 --json | jq -r .traceback
    """
    from mqdb.cli.dlq.letters import letter_json
    from mqdb.cli.message_ids import check_id

    check_id(message_id, f"mqdb dlq list {shlex.quote(message_id)}")
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.dead_letters.show(message_id), broker).without(DeadLetterNotFound)
    found = [(shown_broker(admin, name), *each) for name, answer in answers.results.items() for each in answer]
    for number, (name, letter, redrives) in enumerate(found):
        if as_json:
            print(letter_json(letter, name, redrives))
        else:
            print("\n" * bool(number), end="")
            _print_letter(letter, redrives, name)
    answers.check()


def _print_letter(letter: "WholeDeadLetter", redrives: "list[PastRedrive]", name: str | None) -> None:
    from mqdb.cli.console import standard_output
    from mqdb.cli.dlq.letters import describe, past_redrive_row

    standard_output().print(f"[bold]{letter.msg_id}[/bold]")
    for line in describe(letter, name):
        print(line)
    if redrives:
        print()
        print_rows([past_redrive_row(past) for past in redrives], as_json=False, nothing="")


app.command(cls=Command)(redrive)


@app.command(cls=Command)
def export(
    context: typer.Context,
    group: SomeGroup = None,
    topic: Topic = None,
    tag: Tag = None,
    since: Since = None,
    until: Until = None,
    exception: ExceptionPart = None,
    ids: Ids = None,
    where: Where = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write; if not given, or -, standard output.",
            show_default=False,
        ),
    ] = None,
    broker: Brokers = None,
) -> None:
    """Write dead letters as JSON lines, for each broker the oldest first.

    Each object has the columns of [bold]mqdb.dlq[/bold]. The body is decompressed; the field [bold]encoding[/bold] says
    whether it is text or base64. If the body cannot be decompressed, the field [bold]compression[/bold] names the
    format of its compression.

    \b
    [bold]Examples[/bold]
      mqdb dlq export --output dead.jsonl
      mqdb dlq export billing --since 7d | jq -r .exception | sort | uniq -c
    """
    from mqdb.cli.console import progress, standard_error
    from mqdb.cli.dlq.letters import letter_json

    wanted = filter_of(group, topic, tag, since, until, exception, ids, where)
    written = 0
    console = standard_error()
    console.quiet = not _is_file(output) and sys.stdout.isatty()
    with administering(context) as admin, _written(output) as file, progress(console) as bars:

        def export_from(one: "BrokerAdmin") -> None:
            nonlocal written
            bar = bars.add_task(one.name, total=one.dead_letters.count(wanted), note="")
            for letter in one.dead_letters.read(wanted):
                file.write(letter_json(letter, shown_broker(admin, one.name)).encode() + b"\n")
                written += 1
                bars.update(bar, advance=1, note=f"{written:,} messages")

        answers = admin.on_each(export_from, broker).without(GroupNotFound)
        if not answers.results:
            # Written within the block: if this fails, an existing file stays unchanged.
            answers.check()
    if _is_file(output):
        print(f"{written:,} messages are in {output}")
    answers.check()


def _is_file(output: Path | None) -> bool:
    return output is not None and str(output) != "-"


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """The file to write to. The file gets its name when it is complete; until then, its name ends in .part."""
    if output is None or not _is_file(output):
        yield sys.stdout.buffer
        return
    # A pipe or a device cannot be replaced with another file.
    part = output if output.exists() and not output.is_file() else output.with_name(output.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
        if part != output:
            os.replace(part, output)
    except OSError as error:
        raise ParameterInvalid("output", str(output), error.strerror or str(error)) from error
    finally:
        if part != output:
            part.unlink(missing_ok=True)
