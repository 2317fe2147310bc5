"""The Java kit against RocketMQ's own name server and broker: a case that fails there says nothing about mqdb.

    python -m tests.remoting.against_rocketmq [--versions 4.9.8,5.5.0] [--headers json,binary] [case ...]

The servers are those of `do.py peers`, which Maven fetches into .peers of the checkout. Prints a line for each run and
for each case that fails.
"""

import argparse
import sys
import time

from benchmarks.peers import install, rocketmq_servers
from benchmarks.peers.sides import Side
from tests.fixtures.remoting_kit import NEW, OLD, JavaKit, KitRun, build_kit

_CHECK_SECONDS = 3
#: A broker that has just started is slow. A send that waits for 0.2 s would be refused, and a oneway one be lost.
_SETTINGS = f"""\
autoCreateTopicEnable=true
enablePropertyFilter=true
traceTopicEnable=true
timerWheelEnable=true
recallMessageEnable=true
waitTimeMillsInSendQueue=5000
transactionTimeOut=1000
transactionOpBatchInterval=100
transactionCheckInterval={_CHECK_SECONDS * 1000}
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--versions", default=f"{NEW},{OLD}")
    parser.add_argument("--headers", default="json,binary")
    parser.add_argument("--at-once", default="8", help="how many cases run together; each client costs the broker time")
    parser.add_argument("cases", nargs="*", default=["all"])
    chosen = parser.parse_args()

    install.ROCKETMQ.install(_say)
    failed = 0
    kits = [build_kit(version) for version in chosen.versions.split(",")]
    side = Side("kit", None, flush="ASYNC_FLUSH", java_server=install.ROCKETMQ)
    with rocketmq_servers.running(side, _SETTINGS) as servers:
        address = servers.environment["PEERS_NAME_SERVER"]
        _wait_until_ready(kits[0], address)
        for kit in kits:
            for headers in chosen.headers.split(","):
                begin = time.monotonic()
                options = ("--check-seconds", str(_CHECK_SECONDS), "--at-once", chosen.at_once)
                done = kit.run(address, *chosen.cases, options=options, binary=headers == "binary")
                _say(f"{kit.version} {headers}: {time.monotonic() - begin:.1f} s, {done.cpu_seconds:.1f} s of CPU")
                failed += _report(done)
    return min(failed, 1)


def _wait_until_ready(kit: JavaKit, address: str) -> None:
    """Wait until the name server knows all topics.

    A broker may report one topic at first, and the others in its next report, 30 s later.
    """
    for _ in range(20):
        if kit.run(address, "send_async").outcomes["send_async"].ok:
            return
        time.sleep(2)


def _report(done: KitRun) -> int:
    for outcome in done.outcomes.values():
        state = "ok    " if outcome.ok else "FAILED"
        _say(f"  {state} {outcome.case:20} {outcome.seconds:6.2f} s  {outcome.detail or ''} {outcome.figures}")
    return sum(not outcome.ok for outcome in done.outcomes.values())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
