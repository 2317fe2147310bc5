"""Clients of all kinds while a Patroni cluster fails over, through HAProxy and with a DSN that lists all hosts.

    switchover  a planned switchover
    kill        the postmaster of the primary is killed with -9
    freeze      SIGSTOP of the primary and its Patroni, until another node has led for a while
    patroni     kill -9 of the primary's Patroni; the primary keeps running beside the next one for 40 s
    etcd        etcd is down for 30 s
    restart     all nodes restart, one after another
    standby     SIGSTOP of the synchronous standby, for 30 s

No acknowledged message is lost, except messages that Patroni discards with the timeline of a leader, and messages that
a second primary has acknowledged without a standby. No message is skipped, out of order or stored twice, and each
effect exists once. While there is a leader, no client stands still for more than 15 s; clients that may stay with a
second primary get this time once it has ended. For each client and fault there are at most 20 WARNING lines, and no
traceback. `python3 do.py drill` makes a table.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill import programs
from tests.drill.drill import Drill, running_drill
from tests.drill.faults import FAULTS
from tests.fixtures.program_cache import skipped_if_missing
from tests.remoting.other_clients import python_with_client


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    if (missing := programs.missing()) is not None:
        if os.environ.get("MQDB_REQUIRE_DEPLOY_TOOLS"):
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture(scope="module", params=[True, False], ids=["shutdown-sessions", "sessions stay"])
def drill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """Three nodes, shared by all faults with the same HAProxy setting.

    RocketMQ's Python client is one of the clients.
    """
    with skipped_if_missing():
        rocketmq = python_with_client()
    directory = tmp_path_factory.mktemp("drill")
    with running_drill(directory, shuts_sessions=request.param, rocketmq=rocketmq) as drill:
        yield drill


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_clients_go_on_after_a_fault(drill: Drill, fault: str) -> None:
    verdict = drill.run(fault)

    assert verdict.complaints() == [], verdict.story


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_clients_go_on_if_no_commit_waits_for_a_standby(tmp_path: Path) -> None:
    with running_drill(tmp_path, is_synchronous=False) as drill:
        verdicts = [drill.run(fault) for fault in ("switchover", "kill")]

    for verdict in verdicts:
        assert verdict.complaints() == [], verdict.story


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clients_go_on_after_a_switchover_of_two_nodes(tmp_path: Path) -> None:
    with running_drill(tmp_path, nodes=2) as drill:
        verdict = drill.run("switchover")

    assert verdict.complaints() == [], verdict.story
