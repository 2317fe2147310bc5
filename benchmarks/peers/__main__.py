"""The command line of `python3 do.py peers`."""

import json
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout
from rich.console import Console

from benchmarks.bench import machine
from benchmarks.peers import install
from benchmarks.peers.chart import chart
from benchmarks.peers.clients import ClientFailed
from benchmarks.peers.results import Measurement, summarise
from benchmarks.peers.rounds import Plan, run
from benchmarks.peers.servers import Postgres, ServerFailed, remove_data
from benchmarks.peers.sides import SIDES
from benchmarks.peers.span import describe_commit
from benchmarks.peers.stages import STAGES, Settings
from benchmarks.peers.table import tables
from mqdb.cli.console import progress
from mqdb.errors import MqdbError

#: A table has many columns; a file or a pipe has no width of its own.
_WIDTH = 200


def main(
    stages: Annotated[
        list[str] | None, typer.Argument(metavar="[STAGE]...", help=f"Any of {', '.join(STAGES)}; none: all.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="SIDES", help=f"Sides, separated by commas: {', '.join(SIDES)}.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of turns of each side.")] = 9,
    seconds: Annotated[
        float | None, typer.Option(min=0.5, help="Length of a measurement; unset, what suits the stage.")
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(min=1_000, help="Messages of consume and disk (100,000) and of backlog (1,000,000)."),
    ] = None,
    rates: Annotated[str, typer.Option(help="Messages per second of latency.")] = "200,500,1000,2000",
    foreign: Annotated[
        float, typer.Option(min=0.0, help="A measurement is thrown away if other programs used more CPUs than this.")
    ] = 0.1,
    tries: Annotated[int, typer.Option(min=1, help="Largest number of tries for a quiet measurement.")] = 5,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="JSON lines; unset, a new .peers/results.jsonl.")
    ] = None,
    show: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure nothing: show the JSON lines of an earlier run.")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--chart", metavar="FILE", help="Where to write a chart (SVG).")] = None,
) -> None:
    """Measure mqdb beside PGMQ, pgqueuer, procrastinate and RocketMQ, on this machine.

    The first call installs the peers into .peers/ of the checkout. RocketMQ
    needs java, javac and mvn on PATH. Only the servers of the measured side
    run. docs/peers.md says how to read the table.

    \b
    Examples
      python3 do.py peers
      python3 do.py peers produce --only mqdb,pgmqsql,pgqueuer
      python3 do.py peers latency --rates 200,1000 --rounds 3 --foreign 1
      python3 do.py peers disk --json before.jsonl
      python3 do.py peers --show before.jsonl --chart docs/peers.svg
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    if show is None:
        plan = Plan(
            _chosen("STAGE", stages, STAGES),
            [SIDES[name] for name in _chosen("--only", only.split(",") if only else None, SIDES)],
            Settings(seconds, messages, _numbers("--rates", rates)),
            rounds,
            foreign,
            tries,
        )
        measurements = _measure(plan, output)
    else:
        lines = (json.loads(line) for line in show.read_text().splitlines())
        measurements = [Measurement.from_json(line) for line in lines if "stage" in line]
    rows = summarise(measurements)
    for table in tables(rows):
        console.print(table)
    if svg is not None:
        svg.write_text(chart(rows))


def _chosen(what: str, names: Sequence[str] | None, known: Collection[str]) -> list[str]:
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"{name} is none of {', '.join(known)}", param_hint=what)
    return list(names or known)


def _numbers(what: str, text: str) -> list[int]:
    numbers = [int(number) for number in text.split(",") if number.isdecimal() and int(number)]
    if len(numbers) != text.count(",") + 1:
        raise typer.BadParameter(f"{text} is no list of numbers, 200,1000", param_hint=what)
    return numbers


def _measure(plan: Plan, output: Path | None) -> list[Measurement]:
    notes = Console(stderr=True)
    # As Ctrl-C: every server that runs is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if any(side.database not in (None, "mqdb") for side in plan.sides):
            install.python_peers(notes.print)
        for program in dict.fromkeys(program for side in plan.sides for program in side.java_programs):
            program.install(notes.print)
        install.HOME.mkdir(exist_ok=True)
        # Two runs would measure each other.
        with FileLock(install.HOME / "peers.lock", timeout=0):
            return _measure_alone(plan, output, notes)
    except Timeout:
        sys.exit("do.py peers: another run is measuring in this checkout")
    except (install.NotInstalled, ServerFailed, ClientFailed, MqdbError) as failure:
        notes.print(f"do.py peers: {failure}", markup=False)
        sys.exit(1)


def _measure_alone(plan: Plan, output: Path | None, notes: Console) -> list[Measurement]:
    remove_data()
    postgres = Postgres(notes.print)
    if output is None:
        output = install.HOME / "results.jsonl"
        output.unlink(missing_ok=True)
    header = {"machine": machine.describe(), "postgresql": str(postgres.binaries), **describe_commit()}
    with output.open("a") as lines:
        lines.write(json.dumps(header) + "\n")
    try:
        with progress(notes) as bar:
            task = bar.add_task("peers", total=plan.tasks(), note="")
            return run(plan, postgres, output, lambda note: bar.update(task, advance=1, note=note), notes.print)
    finally:
        postgres.stop()


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="do.py peers")
