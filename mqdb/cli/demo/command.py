"""`mqdb demo`."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import start
from mqdb.errors import ParameterInvalid

if TYPE_CHECKING:
    from rich.console import Console

    from mqdb.cli.demo.scenario import Scenario
    from mqdb.settings import Settings

_REFRESH_SECONDS = 0.1
_PLAIN_SECONDS = 1.0


def demo(
    context: typer.Context,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Use the home directory, or the DSN, and keep the broker running until Ctrl-C."),
    ] = False,
) -> None:
    """Run a broker on 5,166 real flight records, and account for every message.

    The demo starts a broker in its own directory and publishes all flights from New York in the first six days of 2013
    (tag: carrier; keys: flight number and aircraft; each aircraft in order). Two groups in three processes consume
    them, and the demo counts. The exit code is 0 only if no message is lost, duplicated, altered or out of order;
    nothing is left behind.

    \b
    [bold]Examples[/bold]
      mqdb demo
      mqdb demo --keep --home ./demo
    """
    settings = start(context)
    from mqdb.cli.console import standard_output

    if not keep:
        _refuse_place(settings)
    with _home(settings, keep) as settings:
        is_exact = _run(settings, standard_output(), keep)
    if not is_exact:
        raise typer.Exit(1)


def _refuse_place(settings: "Settings") -> None:
    for name in ("dsn", "home"):
        if settings.origin(name) == "argument":
            reason = "the demo creates its own database and removes it; add --keep to run it there"
            raise ParameterInvalid(name, settings.shown(name), reason)


@contextmanager
def _home(settings: "Settings", keep: bool) -> "Iterator[Settings]":
    """The settings to work with: the given ones, or those of a fresh home that is removed afterwards."""
    if keep:
        yield settings
        return
    from mqdb.embedded import temporary_home

    with temporary_home() as home:
        yield settings.model_copy(update={"dsn": None, "pool_dsn": None, "home": home, "port": 0})


def _run(settings: "Settings", console: "Console", keep: bool) -> bool:
    from mqdb.cli.demo.broker import BrokerProcess
    from mqdb.cli.demo.demo_result import print_lines, print_queries, print_result
    from mqdb.cli.demo.flights import load_flights
    from mqdb.cli.demo.scenario import Scenario
    from mqdb.cli.psql import psql_of
    from mqdb.cli.serve import greeting
    from mqdb_client.admin.broker_access import BrokerAccess

    console.print(f"starting a broker in {settings.home}" if settings.broker is None else "starting a broker")
    with BrokerProcess(settings) as broker:
        dsn = broker.wait_until_started()
        name = settings.broker.name if settings.broker else settings.broker_name
        of_clients = settings.model_copy(update={"dsn": f"{name}={dsn}"})
        scenario = Scenario(of_clients, load_flights(), console.print, is_fresh=not keep)
        with _shown(scenario, console):
            result = scenario.run()
        print_result(console, result)
        with closing(BrokerAccess(*of_clients.brokers)) as access, access.connected() as connection:
            print_queries(console, connection)
        if keep:
            print_lines(console, greeting(settings, dsn))
            _wait_for_interrupt()
        else:
            note = "In psql, as long as the broker runs (mqdb demo --keep leaves it running):"
            print_lines(console, [note, "", f"  {psql_of(settings, dsn)}"])
    return result.is_exact


@contextmanager
def _shown(scenario: "Scenario", console: "Console") -> Iterator[None]:
    """Show the progress of the scenario from a thread: bars on a terminal, otherwise a line from time to time."""
    is_over = threading.Event()
    show = _show_bars if console.is_terminal else _show_lines
    shower = threading.Thread(target=show, args=(scenario, console, is_over))
    shower.start()
    try:
        yield
    finally:
        is_over.set()
        shower.join()


def _show_bars(scenario: "Scenario", console: "Console", is_over: threading.Event) -> None:
    from mqdb.cli.console import progress
    from mqdb.cli.demo.scenario import GROUPS

    names = ["published", *(plan.group for plan in GROUPS)]
    totals = [scenario.total, *scenario.expected]
    with progress(console) as bars:
        tasks = [bars.add_task(name, total=total, note="") for name, total in zip(names, totals, strict=True)]
        is_last = False
        while not is_last:
            is_last = is_over.wait(_REFRESH_SECONDS)
            for task, done, total in zip(tasks, [scenario.published, *scenario.received], totals, strict=True):
                bars.update(task, completed=done, note=f"{done:,} of {total:,}")


def _show_lines(scenario: "Scenario", console: "Console", is_over: threading.Event) -> None:
    from mqdb.cli.demo.demo_result import plain_progress

    shown = ""
    is_last = False
    while not is_last:
        is_last = is_over.wait(_PLAIN_SECONDS)
        line = plain_progress(scenario.published, scenario.total, scenario.received, scenario.expected)
        if scenario.published and line != shown:
            console.print(f"  {line}")
            shown = line


def _wait_for_interrupt() -> None:
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_REFRESH_SECONDS)
