"""From a command to its report: where it runs, what it was asked for, what it found."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias

import typer
from sqlalchemy import text

from mqdb.cli.bench import machine, sample
from mqdb.cli.bench.report import Report
from mqdb.cli.bench.rounds import Comparison, Plan
from mqdb.cli.bench.testbed import Testbed, open_testbed
from mqdb.cli.console import standard_error, standard_output
from mqdb.cli.options import start
from mqdb.dsn import redact
from mqdb.errors import ParameterInvalid
from mqdb.store.engine import translated

Comparisons: TypeAlias = Callable[[Testbed], Generator[Comparison, None, None]]


class Options(NamedTuple):
    """What all benchmarks can be asked for. `names` are those of the figures that there are."""

    benchmark: str
    names: Sequence[str]
    rounds: int
    hold_transaction: bool
    pairs: int
    only: Sequence[str] | None
    as_json: bool

    def check(self) -> None:
        """Raises ParameterInvalid for a figure that does not exist."""
        for name in self.only or ():
            if name not in self.names:
                raise ParameterInvalid("--only", name, f"the figures are {', '.join(self.names)}")


def run(
    context: typer.Context,
    options: Options,
    comparisons: Comparisons,
    parameters: Mapping[str, object],
    notes: Sequence[str],
) -> None:
    """Measure, and print. Missing a goal is a finding, not an error."""
    settings = start(context)
    options.check()
    # MQDB_DSN is where somebody's messages are; a benchmark goes there only when told to.
    broker = settings.broker if settings.origin("dsn") == "argument" else None
    with (
        standard_error().status("starting") as status,
        translated(redact(broker.dsn) if broker else "the embedded PostgreSQL"),
        open_testbed(broker) as testbed,
    ):
        plan = Plan(testbed.broker.dsn, options.rounds, options.hold_transaction, options.pairs, announce=status.update)
        load_before = machine.load_average()
        with closing(comparisons(testbed)) as wanted:
            figures = [plan.carry_out(each) for each in wanted if not options.only or each.name in options.only]
        report = Report(
            options.benchmark,
            _environment(testbed) | {"load_average": [load_before, machine.load_average()]},
            {
                "body_bytes": sample.BODY_BYTES,
                **parameters,
                "rounds": options.pairs or options.rounds,
                "transaction_held_open": "in every other round" if options.pairs else options.hold_transaction,
            },
            figures,
            [*notes, *_remains(testbed)],
        )
    if options.as_json:
        print(report.as_json())
    else:
        report.show(standard_output())


def _environment(testbed: Testbed) -> dict[str, object]:
    version = testbed.connection.scalar(text("SHOW server_version"))
    return {
        **machine.describe(),
        "postgresql": version,
        "server": redact(testbed.broker.dsn) if testbed.is_given else "embedded, fresh",
        "durability": machine.durability(testbed.below),
    }


def _remains(testbed: Testbed) -> list[str]:
    if not testbed.is_given:
        return []
    return ["the topics of the benchmark are deleted; their records stay until retention drops their segments"]
