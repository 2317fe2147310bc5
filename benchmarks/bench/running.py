"""The steps from a command to its report: its place, its options, and its findings."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeAlias

import typer
from sqlalchemy import text

from benchmarks.bench import machine, message_sample
from benchmarks.bench.bench_report import BenchReport
from benchmarks.bench.comparison import Plan, SideComparison
from benchmarks.bench.figures import Figure
from benchmarks.bench.holding import held_send, held_transaction
from benchmarks.bench.testbed import Testbed, open_testbed
from mqdb.cli.console import standard_error, standard_output
from mqdb.cli.options import start
from mqdb.common.dsn import BrokerDsn, redact
from mqdb.errors import ParameterInvalid
from mqdb.settings import Settings
from mqdb.store.engine import translated

Comparisons: TypeAlias = Callable[[Testbed], Generator[SideComparison, None, None]]


class Options(NamedTuple):
    """The options that all benchmarks share. `names` are the names of all figures."""

    benchmark: str
    names: Sequence[str]
    rounds: int
    hold_transaction: bool
    hold_send: bool
    pairs: int
    only: Sequence[str] | None
    as_json: bool
    #: Brokers that it can make use of.
    most_brokers: int = 1

    @property
    def wanted(self) -> Sequence[str]:
        """The names of the figures to measure. Raises ParameterInvalid for an unknown name."""
        for name in self.only or ():
            if name not in self.names:
                raise ParameterInvalid("--only", name, f"the figures are {', '.join(self.names)}")
        return self.only or self.names

    def brokers(self, settings: Settings) -> Sequence[BrokerDsn]:
        """The given brokers; without any the benchmark makes its own. Raises ParameterInvalid if there are too many."""
        # MQDB_DSN is where somebody's messages are; a benchmark goes there only when told to.
        if settings.dsn is None or settings.origin("dsn") != "argument":
            return ()
        if len(settings.brokers) > self.most_brokers:
            reason = f"names {len(settings.brokers)} brokers; {self.benchmark} takes {self.most_brokers}"
            raise ParameterInvalid("--dsn", redact(settings.dsn), reason)
        return settings.brokers

    def plan(self, testbed: Testbed, announce: Callable[[str], None]) -> Plan:
        """The number of rounds of each figure, and the transaction that is held open during them."""
        if not (self.hold_transaction or self.hold_send or self.pairs):
            return Plan(self.rounds, announce=announce)
        hold = partial(held_send if self.hold_send else held_transaction, testbed)
        return Plan(self.pairs or self.rounds, hold, in_pairs=self.pairs > 0, announce=announce)

    @property
    def held(self) -> str:
        """The transaction that `plan` holds open, in words."""
        if not (self.hold_transaction or self.hold_send or self.pairs):
            return "no"
        return ("in every other round" if self.pairs else "yes") + (", with a send in it" if self.hold_send else "")


def run(
    context: typer.Context,
    options: Options,
    comparisons: Comparisons,
    parameters: Mapping[str, object],
    notes: Sequence[str],
) -> None:
    """Measure, and print the report. A missed goal is a finding, not an error."""
    settings = start(context)
    wanted = options.wanted
    brokers = options.brokers(settings)
    with (
        standard_error().status("starting") as status,
        translated(", ".join(redact(broker.dsn) for broker in brokers) or "the embedded PostgreSQL"),
        open_testbed(brokers) as testbed,
    ):
        plan = options.plan(testbed, status.update)
        load_before = machine.load_average()
        with closing(comparisons(testbed)) as possible:
            figures = [plan.carry_out(each) for each in possible if each.name in wanted]
        report = BenchReport(
            options.benchmark,
            environment(testbed, brokers) | {"load_average": [load_before, machine.load_average()]},
            {
                "body_bytes": message_sample.BODY_BYTES,
                **parameters,
                "rounds": plan.rounds,
                "transaction_held_open": options.held,
            },
            figures,
            [*notes, *_left_out(wanted, figures), *_remains(testbed)],
        )
    if options.as_json:
        standard_output().out(report.as_json())
    else:
        report.show(standard_output())


def environment(testbed: Testbed, brokers: Sequence[BrokerDsn]) -> dict[str, object]:
    version = testbed.connection.scalar(text("SHOW server_version"))
    return {
        **machine.describe(),
        "postgresql": version,
        "server": ", ".join(redact(broker.dsn) for broker in brokers) or "embedded, fresh",
        "durability": machine.durability(testbed.below),
    }


def _left_out(wanted: Sequence[str], figures: Sequence[Figure]) -> list[str]:
    measured = [figure.name for figure in figures]
    left_out = [name for name in wanted if name not in measured]
    return [f"not measured, for --dsn names one broker only: {', '.join(left_out)}"] if left_out else []


def _remains(testbed: Testbed) -> list[str]:
    if not testbed.is_given:
        return []
    return ["the topics of the benchmark are deleted; their records stay until retention drops their segments"]
