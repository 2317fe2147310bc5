"""The faults of the drill. Each function returns when its fault is over; the cluster may need a while longer."""

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.drill.cluster import SCOPE, Cluster, Node
from tests.fixtures.processes import wait_until

#: How long something is away, at least.
AWAY_SECONDS: Final = 30.0
#: How long a killed Patroni is away, at least. Its key lives for the first 20 s.
_ORPHANED_SECONDS: Final = 40.0
#: How long a new leader reigns at least before the old one comes back: clients are to leave that one by themselves.
_REIGN_SECONDS: Final = 25.0
_FAIL_OVER_SECONDS: Final = 90.0


class Injected(NamedTuple):
    """The node that a fault has hit, and its time."""

    #: The node that the fault was about.
    node: str = ""
    #: Whether it was a synchronous standby, for which commits have waited.
    was_awaited: bool = False
    #: Whether it was a primary without Patroni, beside the one that Patroni promoted.
    was_orphaned: bool = False


def _leader(cluster: Cluster) -> Node:
    leader = cluster.leader()
    assert leader is not None
    return leader


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _wait_for_successor(cluster: Cluster, leader: Node, until: float) -> None:
    """Wait at least until `until`, and until another leader has reigned for a while."""
    wait_until(lambda: (found := cluster.leader()) is not None and found is not leader, _FAIL_OVER_SECONDS)
    _wait(max(_REIGN_SECONDS, until - time.monotonic()))


def switchover(cluster: Cluster) -> Injected:
    """A planned switchover to a standby, the synchronous one if there is one."""
    leader, candidate = _leader(cluster), cluster.standby()
    cluster.patronictl("switchover", SCOPE, "--leader", leader.name, "--candidate", candidate.name, "--force")
    return Injected(leader.name)


def kill(cluster: Cluster) -> Injected:
    """kill -9 of the postmaster of the primary."""
    leader = _leader(cluster)
    leader.kill_postgres()
    return Injected(leader.name)


def freeze(cluster: Cluster) -> Injected:
    """SIGSTOP of the primary and its Patroni, for at least 30 s, until another leader has reigned for 25 s."""
    leader = _leader(cluster)
    began = time.monotonic()
    leader.freeze()
    try:
        _wait_for_successor(cluster, leader, began + AWAY_SECONDS)
    finally:
        leader.wake()
    return Injected(leader.name)


def patroni(cluster: Cluster) -> Injected:
    """kill -9 of the primary's Patroni: there are two primaries until Patroni is started again, after 40 s or more."""
    leader = _leader(cluster)
    began = time.monotonic()
    leader.kill_patroni()
    try:
        _wait_for_successor(cluster, leader, began + _ORPHANED_SECONDS)
    finally:
        leader.start()
    return Injected(leader.name, was_orphaned=True)


def etcd_away(cluster: Cluster) -> Injected:
    """etcd is stopped for 30 s: the primary demotes itself."""
    cluster.etcd.stop()
    try:
        _wait(AWAY_SECONDS)
    finally:
        cluster.etcd.start()
    return Injected()


def restart(cluster: Cluster) -> Injected:
    """A rolling restart: the standbys, then the primary."""
    leader = _leader(cluster)
    for node in cluster.nodes:
        if node is not leader:
            cluster.patronictl("restart", SCOPE, node.name, "--force")
    cluster.patronictl("restart", SCOPE, leader.name, "--force")
    return Injected(leader.name)


def standby(cluster: Cluster) -> Injected:
    """SIGSTOP for 30 s of a standby and its Patroni, the synchronous standby if there is one."""
    node = cluster.standby()
    node.freeze()
    try:
        _wait(AWAY_SECONDS)
    finally:
        node.wake()
    return Injected(node.name, was_awaited=cluster.is_synchronous)


FAULTS: Final[Mapping[str, Callable[[Cluster], Injected]]] = MappingProxyType(
    {
        "switchover": switchover,
        "kill": kill,
        "freeze": freeze,
        "patroni": patroni,
        "etcd": etcd_away,
        "restart": restart,
        "standby": standby,
    }
)
