"""`mqdb dlq redrive`: send dead letters back to their group."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.confirm import confirm
from mqdb.cli.dlq.choice import (
    ExceptionPart,
    Ids,
    Since,
    Tag,
    Topic,
    Until,
    Where,
    filter_of,
    shown_broker,
)
from mqdb.cli.dlq.redriver import Redriver
from mqdb.cli.options import administering
from mqdb.cli.rows import Brokers, Json, Yes, has_several, of_broker, print_rows
from mqdb.errors import GroupNotFound, ParameterInvalid

if TYPE_CHECKING:
    from mqdb_client import Admin, Answers, BrokerAdmin, Chosen, RedriveResult

_BODY = "A different body, for one message"


def redrive(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)],
    topic: Topic = None,
    tag: Tag = None,
    since: Since = None,
    until: Until = None,
    exception: ExceptionPart = None,
    ids: Ids = None,
    where: Where = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Redrive at most this many messages on each broker, the oldest first.", show_default=False
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Include messages that were redriven before.")] = False,
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="This text.", rich_help_panel=_BODY)] = None,
    body_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use the content of this file as the body.", rich_help_panel=_BODY),
    ] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="Edit the body in $EDITOR first.", rich_help_panel=_BODY)
    ] = False,
    to_topic: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Send to all groups of this topic, as new messages.", show_default=False),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N/s", help="Redrive at most this many messages a second; if not given, as fast as possible."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Print what would be done, without doing it.")
    ] = False,
    each: Annotated[bool, typer.Option("--each", help="Print a line for each message; a dry run always does.")] = False,
    yes: Yes = False,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Send messages that a group gave up back to the group.

    Only the group that failed the messages gets them, with the same ids and with all retries still available. The
    copies in the dead letter queue stay and are marked as redriven; the next redrive takes only those that are not
    marked. Messages are sent in batches, each in one transaction together with its results: Ctrl-C stops the command
    after a batch, and running the same command again continues from there.

    \b
    [bold]Examples[/bold]
      mqdb dlq redrive billing --dry-run
      mqdb dlq redrive billing --exception TimeoutError --rate 100/s
      mqdb dlq redrive billing --where "error like '%price%'" --yes
      mqdb dlq redrive billing --id 0A0B0C0D1E2F00000000000000000001 --edit
      mqdb dlq redrive billing --topic orders --to-topic orders-again
    """
    from mqdb_client import Answers, Redrive

    wanted = filter_of(group, topic, tag, since, until, exception, ids, where)
    condition = f"{wanted} --limit {limit}" if limit else str(wanted)
    how = Redrive(condition, to_topic, _given_body(body, body_file, edit), again)
    per_second = None if rate is None else _parse_rate(rate)
    with administering(context) as admin:

        def choose_on(one: "BrokerAdmin") -> "Chosen":
            return one.dead_letters.choose(wanted, again=again, limit=limit, to_topic=to_topic)

        found = admin.on_each(choose_on, broker).without(GroupNotFound)
        work = {name: chosen for name, chosen in found.results.items() if chosen.positions}
        if work and (edit or how.body is not None):
            _check_one_message(work, edit)
            if edit:
                how = how._replace(body=_edited(admin, group, work))
        if work and not (dry_run or yes):
            _confirm(admin, group, work, to_topic)
        redriver = Redriver(how, is_dry_run=dry_run, per_second=per_second)
        line_of = _json_line if as_json else _line if each or dry_run else None
        failures = found.failures | _run(redriver, admin, work, line_of).failures
    if not as_json:
        _print_summary(admin, redriver, found)
    redriver.interruption.pass_on()
    Answers({name: one for name, one in found.results.items() if name not in failures}, failures).check()
    redriver.check()


# -- what is asked for ----------------------------------------------------------------------------


def _parse_rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/s)?", text, re.ASCII)
    if match is None or not float(match[1]):
        raise ParameterInvalid("rate", text, "must be a number of messages a second, such as 100/s or 0.5/s")
    return float(match[1])


def _given_body(text: str | None, file: Path | None, edit: bool) -> bytes | None:
    if (text is not None) + (file is not None) + edit > 1:
        raise ParameterInvalid("body", text or str(file), "give only one of --body, --body-file and --edit")
    if file is None:
        return None if text is None else os.fsencode(text)
    try:
        return file.read_bytes()
    except OSError as error:
        raise ParameterInvalid("body_file", str(file), error.strerror or str(error)) from error


def _check_one_message(work: "dict[str, Chosen]", edit: bool) -> None:
    count = sum(len(chosen.positions) for chosen in work.values())
    if count > 1:
        option = "edit" if edit else "body"
        raise ParameterInvalid(
            option, f"{count:,} messages", "a new body can be given to one message only; choose it with --id"
        )


def _edited(admin: "Admin", group: str, work: "dict[str, Chosen]") -> bytes:
    """The body of the one message, after the user has edited it."""
    from mqdb.common.compression import decompress
    from mqdb_client import DeadLetterFilter

    ((name, chosen),) = work.items()
    (letter,) = admin.on(name).dead_letters.read(DeadLetterFilter(group, where=f"log_pos = {chosen.positions[0]}"))
    before = decompress(letter.body, letter.sys_flag)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="mqdb-") as folder:
        file = Path(folder) / "body"
        file.write_bytes(before)
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)
            body = file.read_bytes()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise ParameterInvalid("edit", editor, f"the editor failed: {error}") from error
    if body == before:
        raise ParameterInvalid("edit", editor, "the editor did not change the body; leave --edit out")
    return body


def _confirm(admin: "Admin", group: str, work: "dict[str, Chosen]", to_topic: str | None) -> None:
    count = sum(len(chosen.positions) for chosen in work.values())
    where = f" on {', '.join(work)}" if has_several(admin) else ""
    target = "" if to_topic is None else f", to all groups of topic {to_topic}"
    what = "1 message" if count == 1 else f"{count:,} messages"
    confirm(f"Redrive {what} of group {group}{where}{target}?", "--yes, or --dry-run")


# -- what is done, and what is said of it ---------------------------------------------------------


def _run(
    redriver: Redriver,
    admin: "Admin",
    work: "dict[str, Chosen]",
    line_of: "Callable[[RedriveResult, str | None], str] | None",
) -> "Answers[None]":
    from mqdb.cli.console import progress, standard_error
    from mqdb_client import Answers

    # Not rich's replacement for it, which writes to standard error, where the bars are.
    output, console = sys.stdout, standard_error()
    console.quiet = line_of is not None and output.isatty()
    with redriver.interruption, progress(console) as bars:

        def redrive_on(one: "BrokerAdmin") -> None:
            positions = work[one.name].positions
            bar = bars.add_task(one.name, total=len(positions), note="")
            for results in redriver.run(one.name, one.dead_letters, positions):
                if line_of is not None:
                    for result in results:
                        print(line_of(result, shown_broker(admin, one.name)), file=output)
                bars.update(bar, advance=len(results), note=f"{redriver.done:,} messages")

        return admin.on_each(redrive_on, list(work)) if work else Answers()


def _json_line(result: "RedriveResult", broker: str | None) -> str:
    from mqdb.cli.dlq.letters import record_json

    return record_json(result, broker)


def _line(result: "RedriveResult", _broker: str | None) -> str:
    from mqdb.cli.dlq.letters import result_line

    return result_line(result)


def _print_summary(admin: "Admin", redriver: Redriver, found: "Answers[Chosen]") -> None:
    """Print a line for each broker, status and reason, and how many messages were left out as already redriven."""
    rows = [
        of_broker(admin, broker) | {"status": status, "messages": count, "why": reason}
        for (broker, status, reason), count in sorted(redriver.tally.items())
    ]
    total = sum(len(one.positions) for one in found.results.values())
    if rows or not (total or found.failures):
        print_rows(rows, as_json=False, nothing="No message meets these conditions.")
    if left_out := sum(one.left_out for one in found.results.values()):
        print(f"{left_out:,} more were redriven before; --again includes them.")
    if redriver.is_stopped:
        print(f"mqdb: stopped after {redriver.done:,} of {total:,} messages", file=sys.stderr)
