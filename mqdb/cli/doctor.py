"""`mqdb doctor`: problems of the brokers in the settings, and what to do about them."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.options import start
from mqdb.cli.rows import Brokers, Json, of_broker, print_rows
from mqdb.errors import BrokerUnavailable, ParameterInvalid

if TYPE_CHECKING:
    from mqdb.settings import Settings
    from mqdb_client import DoctorThresholds, Finding


def doctor(
    context: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Run only these checks; may be repeated.", show_default=False),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="A threshold that replaces the default; may be repeated.", show_default=False
        ),
    ] = None,
    list_checks: Annotated[
        bool,
        typer.Option("--list", help="List the checks, and when each warns or fails, without connecting to a broker."),
    ] = False,
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Look for problems of a broker, and print what to do about each.

    The command changes nothing, and costs the server about as much as mqdb group list. If the role lacks the owner's
    rights, checks that it cannot make are reported as UNKNOWN.

    The exit code is 0 if all is well, 1 if a check warns or cannot be completed, and 2 if a check fails or a broker
    cannot be reached. Thresholds have the names of the fields of mqdb_client.DoctorThresholds.

    \b
    [bold]Examples[/bold]
      mqdb doctor
      mqdb doctor --only leader,xmin
      mqdb doctor --json | jq 'select(.status == "FAIL")'
      mqdb doctor --threshold lag_warn_seconds=60
      mqdb doctor --list
    """
    from mqdb_client import Admin, Doctor, Finding, FindingStatus
    from mqdb_client.admin.doctor import environment_findings

    settings = start(context)
    names = [name.strip() for text in only for name in text.split(",")] if only else None
    thresholds = _thresholds(settings, threshold or [])
    checks = Doctor.checks(names)
    if list_checks:
        listed = [
            {
                "check": each.name,
                "looks_at": each.looks_at,
                "problem": each.problem_at(thresholds),
                "remedy": each.remedy,
            }
            for each in checks
        ]
        print_rows(listed, as_json, "There are no checks.")
        return
    try:
        with Admin(settings=settings) as admin:
            answers = admin.on_each(lambda one: one.doctor.examine(thresholds, names), broker)
        found = [(name, each) for name, findings in answers.results.items() for each in findings]
    except BrokerUnavailable as error:  # the embedded broker does not run
        stopped = Finding("connection", FindingStatus.FAIL, str(error), "mqdb serve")
        found = [(settings.broker_name, each) for each in [*environment_findings(checks), stopped]]
    _print(settings, found, as_json)
    raise typer.Exit(Doctor.exit_code([each for _, each in found]))


def _thresholds(settings: "Settings", given: Sequence[str]) -> "DoctorThresholds":
    """The thresholds from the settings and the command line.

    Raises ParameterInvalid for an unknown name or a value that is not a number.
    """
    from mqdb_client import DoctorThresholds

    known = {field.name for field in fields(DoctorThresholds)}
    values: dict[str, Any] = {"reserved_hours": settings.file_reserved_time / timedelta(hours=1)}
    for text in given:
        name, _, number = text.partition("=")
        if name not in known:
            raise ParameterInvalid(
                "threshold", text, f"is not a threshold; the thresholds are {', '.join(sorted(known))}"
            )
        try:
            values[name] = float(number) if "." in number else int(number)
        except ValueError:
            raise ParameterInvalid("threshold", text, "must be written NAME=NUMBER") from None
    return DoctorThresholds(**values)


def _print(settings: "Settings", found: Sequence[tuple[str, "Finding"]], as_json: bool) -> None:
    """Print findings: as JSON objects, or for people with the worst first and each remedy on its own line."""
    from mqdb.cli.console import standard_output, table
    from mqdb_client import FindingStatus

    if as_json:
        print_rows([{**of_broker(settings, name), **asdict(each)} for name, each in found], True, "")
        return
    order = list(FindingStatus)
    columns = ["status", *of_broker(settings, ""), "check", "seen"]
    lines: list[Sequence[object]] = []
    for status, those in groupby(sorted(found, key=lambda one: order.index(one[1].status)), lambda one: one[1].status):
        lines += [[None] * len(columns)] if lines else []
        for number, (name, each) in enumerate(those):
            lines.append([None if number else status, *of_broker(settings, name).values(), each.check, each.seen])
            lines += [[*[None] * (len(columns) - 1), f"> {each.remedy}"]] if each.remedy else []
    standard_output().print(table(columns, lines, whole=("status", "check")))
