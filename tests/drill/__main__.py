"""Run the drill and print its table.

    python3 do.py drill                                      each fault once, with HAProxy as deploy/patroni has it
    python3 do.py drill --rounds 3 --fault switchover        one fault, three times
    python3 do.py drill --haproxy both                       once more without shutdown-sessions
    python3 do.py drill --asynchronous                       on a cluster with `synchronous_mode: false`
    python3 do.py drill --checkout ../mqdb-before            with the clients and `mqdb serve` of another checkout

The drill needs Debian packages, which it names if they are missing, and about 60 s for each fault. The drill prints its
progress to standard error and the table to standard output.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.drill import programs
from tests.drill.clients import ROOT
from tests.drill.drill import running_drill
from tests.drill.faults import FAULTS
from tests.drill.judge import Verdict
from tests.drill.table import table
from tests.remoting.other_clients import python_with_client

_HAPROXY = {"with": [True], "without": [False], "both": [True, False]}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="do.py drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is injected")
    parser.add_argument("--fault", action="append", choices=[*FAULTS], help="may be repeated; by default all of them")
    parser.add_argument("--haproxy", choices=[*_HAPROXY], default="with", help="with or without shutdown-sessions")
    parser.add_argument("--asynchronous", action="store_true", help="no commit waits for a standby")
    parser.add_argument("--nodes", type=int, choices=[2, 3], default=3)
    parser.add_argument("--rocketmq", action="store_true", help="with RocketMQ's Python client, behind `mqdb remoting`")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="a checkout of mqdb whose clients are tested")
    parser.add_argument("--directory", type=Path, help="where logs and records stay; by default they are removed")
    options = parser.parse_args()
    if (missing := programs.missing()) is not None:
        sys.exit(f"do.py drill: programs are missing; {missing}")
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
        return run(options, options.directory.resolve())
    with tempfile.TemporaryDirectory(prefix="mqdb-drill-") as directory:
        return run(options, Path(directory))


def run(options: argparse.Namespace, directory: Path) -> int:
    """Run all faults with each HAProxy setting; returns 1 if there is a complaint."""
    faults = options.fault or [*FAULTS]
    variants = _HAPROXY[options.haproxy]
    total = len(faults) * options.rounds * len(variants)
    began = time.monotonic()
    verdicts: list[Verdict] = []

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        sys.stderr.write(f"{minutes:3}:{seconds:02} {min(len(verdicts) + 1, total)}/{total} {text}\n")
        sys.stderr.flush()

    rocketmq = python_with_client() if options.rocketmq else None
    for shuts_sessions in variants:
        say("starts a cluster")
        own = directory / ("with" if shuts_sessions else "without")
        own.mkdir()
        with running_drill(
            own,
            nodes=options.nodes,
            shuts_sessions=shuts_sessions,
            is_synchronous=not options.asynchronous,
            checkout=options.checkout,
            rocketmq=rocketmq,
        ) as drill:
            for fault in [fault for fault in faults for _ in range(options.rounds)]:
                verdicts.append(drill.run(fault, lambda text, fault=fault: say(f"{fault}: {text}")))  # type: ignore[misc]
                for line in [*verdicts[-1].story, *verdicts[-1].complaints()]:
                    say(f"  {line}")
    sys.stdout.write(table(verdicts) + "\n")
    if options.asynchronous:
        sys.stdout.write("\nNo commit waited for a standby: `synchronous_mode: false`.\n")
    return int(any(verdict.complaints() for verdict in verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
