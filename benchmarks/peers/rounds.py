"""Rounds: in each round every side has its turn, in a different order each time."""

import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peers import rocketmq_servers
from benchmarks.peers.clients import ClientFailed
from benchmarks.peers.results import Measurement, until_quiet
from benchmarks.peers.servers import Postgres, Running
from benchmarks.peers.sides import Side
from benchmarks.peers.span import machine_load
from benchmarks.peers.stages import STAGES, Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages and sides of a run, the number of rounds, and the limit on CPU use by other programs."""

    stages: Sequence[str]
    sides: Sequence[Side]
    settings: Settings
    rounds: int
    most_foreign: float
    tries: int

    def turns(self) -> list[tuple[str, int, Side]]:
        """Stage, round and side of each turn, in the order of measurement."""
        turns = []
        for stage in self.stages:
            sides = [side for side in self.sides if STAGES[stage](side, self.settings)]
            for number in range(1, self.rounds + 1):
                # The same order in every run, and another one in every round.
                order = random.Random(f"{stage} {number}").sample(sides, len(sides))
                turns += [(stage, number, side) for side in order]
        return turns

    def tasks(self) -> int:
        return sum(len(STAGES[stage](side, self.settings)) for stage, _, side in self.turns())


def run(
    plan: Plan, postgres: Postgres, output: Path, advance: Callable[[str], None], complain: Callable[[str], None]
) -> list[Measurement]:
    """Measure everything.

    Each measurement is written to `output` at once, as a line; `advance` is called for each task. If a client program
    fails, its figure is missing, and the failure is passed to `complain`.
    """
    measurements: list[Measurement] = []
    for stage, number, side in plan.turns():
        with _servers(side, postgres) as server:
            for task in STAGES[stage](side, plan.settings):
                advance(f"{stage} {number}/{plan.rounds}: {side.name} {task.way} {task.work}".replace("  ", " "))
                try:
                    tried = until_quiet(partial(task.measure, server), plan.most_foreign, plan.tries)
                except ClientFailed as failure:
                    # The other measurements of a long run are worth having.
                    complain(f"no figure for {stage}, {side.name} {task.way} {task.work}: {failure}")
                    continue
                found = [
                    Measurement(stage, task.work, side.name, task.way, number, is_kept, figures)
                    for is_kept, figures in tried
                ]
                measurements += found
                with output.open("a") as lines:
                    for each in found:
                        more = {"load": machine_load(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
                        lines.write(json.dumps({**each.as_json(), **more}) + "\n")
    return measurements


def _servers(side: Side, postgres: Postgres) -> AbstractContextManager[Running]:
    if side.database is not None:
        return postgres.running(side)
    postgres.stop()
    return rocketmq_servers.running(side)
