"""`do.py bench grow`: from the command to its report, with a progress bar for the growth of the log."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import typer

from benchmarks.bench import grow, machine, message_sample
from benchmarks.bench.bench_report import BenchReport
from benchmarks.bench.grow import GrowStep
from benchmarks.bench.grow_log import GROUPS, QUEUES, TOPICS
from benchmarks.bench.running import Options, environment
from benchmarks.bench.testbed import open_testbed
from mqdb.cli.console import progress, standard_error, standard_output
from mqdb.cli.options import start
from mqdb.errors import ParameterInvalid
from mqdb.store.engine import translated

_SMALLEST = 1_000


def run_grow(context: typer.Context, options: Options, sizes: str, segment_records: int | None) -> None:
    """Measure at each size, and print the report. A growing cost is a finding, not an error."""
    settings = start(context)
    wanted, steps_of = options.wanted, _sizes(sizes)
    options.brokers(settings)
    # Only a directory that is named: nobody expects gigabytes in the usual home.
    parent: Path | None = settings.home if settings.origin("home") == "argument" else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with (
        progress(standard_error()) as bars,
        translated("the embedded PostgreSQL"),
        open_testbed((), parent) as testbed,
    ):
        bar = bars.add_task("starts", total=None, note="")

        def announce(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        load_before = machine.load_average()
        steps = list(grow.steps(testbed, steps_of, wanted, options.rounds, announce, segment_records))
        report = BenchReport(
            options.benchmark,
            environment(testbed, ()) | {"load_average": [load_before, machine.load_average()]},
            {
                "body_bytes": message_sample.BODY_BYTES,
                "sizes": ", ".join(f"{size:,}" for size in steps_of),
                "topics": TOPICS,
                "queues_of_a_topic": QUEUES,
                "segments_of": segment_records or "as many messages as mqdb serve would choose",
                "groups": f"{GROUPS}, one of them at the beginning",
                "rounds": options.rounds,
            },
            grow.figures(steps),
            _notes(steps),
        )
    if options.as_json:
        typer.echo(report.as_json())
    else:
        report.show(standard_output())


def _sizes(text: str) -> Sequence[int]:
    """The sizes in the text. Raises ParameterInvalid unless they are ascending numbers."""
    try:
        sizes = [int(each) for each in text.split(",")]
    except ValueError:
        raise ParameterInvalid("--sizes", text, "must be numbers, separated by commas") from None
    if sizes[0] < _SMALLEST or any(later < 2 * earlier for earlier, later in pairwise(sizes)):
        reason = f"must begin with {_SMALLEST:,} or more, and each must be twice the one before or more"
        raise ParameterInvalid("--sizes", text, reason)
    return sizes


def _notes(steps: Sequence[GrowStep]) -> list[str]:
    return [
        *(step.sentence for step in steps),
        "a value is the mean of the calls of a round; a ratio below 1 means that it is slower than at the first size",
        "pages are loaded without a browser, one part after the other",
    ]
