"""Clients of all kinds while a cluster of Patroni fails over, by HAProxy and by a DSN with all hosts.

    switchover  a planned one
    kill        the postmaster of the primary is killed with -9
    freeze      SIGSTOP of the primary and its Patroni, until another one has led for a while
    patroni     kill -9 of the Patroni of the primary, which goes on beside the next one for 40 s
    etcd        is away for 30 s
    restart     of all nodes, one after the other
    standby     SIGSTOP of the synchronous standby, for 30 s

Nothing that was acknowledged is lost, except what Patroni gives up together with the timeline of a leader, and what a
second primary has acknowledged without a standby; nothing is skipped, out of order or stored twice, and effects are
there once. While there is a leader no client stands still for more than 15 s; those that may stay with a second primary
have that time when it has ended. For each client and fault there are at most 20 lines of WARNING, and no traceback.
`python3 do.py drill` makes a table.
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
    """Three nodes, which all faults of a HAProxy share. RocketMQ's Python client is one of the clients."""
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
