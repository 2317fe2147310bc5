"""The sides of the comparison: the servers of each, the creation of its database, and the start of its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.peers.install import ROCKETMQ, ROCKETMQ_PROXY, ROCKETMQ_SDK, JavaProgram


@dataclass(frozen=True, slots=True)
class Side:
    """A broker with one of its clients."""

    name: str
    #: Of the PostgreSQL; None: the broker keeps its messages elsewhere.
    database: str | None
    #: How many messages wait to be consumed.
    waiting: str | None = None
    #: How its consumer can read, and what to call that. The first is the usual one.
    ways: Mapping[str, str] = field(default_factory=dict)
    #: RocketMQ's flushDiskType.
    flush: str | None = None
    #: Its client, if that is RocketMQ's own.
    java_client: JavaProgram | None = None
    #: RocketMQ's servers, and the program that makes their topics and groups.
    java_server: JavaProgram | None = None

    @property
    def is_java(self) -> bool:
        return self.java_client is not None

    @property
    def speaks_grpc(self) -> bool:
        """Whether the client uses gRPC.

        A gRPC client sends no batches, and its group must exist before the client starts.
        """
        return self.java_client is ROCKETMQ_SDK

    @property
    def java_programs(self) -> tuple[JavaProgram, ...]:
        return tuple(program for program in (self.java_client, self.java_server) if program is not None)

    @property
    def worker(self) -> str:
        """The module of the side's client."""
        return f"benchmarks.peers.workers.{self.name}"


MQDB: Final = Side(
    "mqdb",
    "mqdb",
    "SELECT count(*) FROM mqdb.commit_log",
    {
        "push": "push",
        "push100": "push, batches of 100",
        "poll100": "poll 100, commit each",
        "pop10": "pop 10, ack together",
        "pop100": "pop 100, ack together",
        "pushpop": "push, in a group that pops",
    },
)

_JAVA_WAYS: Final = {"push": "push", "push100": "push, batches of 100"}
_PUSH: Final = {"push": "push"}

_PGMQ_WAITING: Final = "SELECT count(*) FROM pgmq.q_bench"

SIDES: Final = {
    side.name: side
    for side in (
        MQDB,
        Side("pgmqsql", "pgmq", _PGMQ_WAITING, {"read100": "read 100, delete", "read10": "read 10, delete"}),
        Side("pgmqpy", "pgmq", _PGMQ_WAITING, {"read100": "read 100, delete"}),
        Side(
            "pgqueuer",
            "pgqueuer",
            "SELECT count(*) FROM pgqueuer WHERE status = 'queued'",
            {"batch10": "batches of 10", "batch100": "batches of 100"},
        ),
        Side(
            "procrastinate",
            "procrastinate",
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'",
            {"jobs10": "10 jobs at once"},
        ),
        Side("rocketmq-sync", None, None, _JAVA_WAYS, "SYNC_FLUSH", ROCKETMQ, ROCKETMQ),
        Side("rocketmq-async", None, None, _PUSH, "ASYNC_FLUSH", ROCKETMQ, ROCKETMQ),
        Side("rocketmq-proxy", None, None, _PUSH, "SYNC_FLUSH", ROCKETMQ_SDK, ROCKETMQ_PROXY),
        Side("mqdb-remoting", "mqdb", MQDB.waiting, _JAVA_WAYS, java_client=ROCKETMQ),
        Side("mqdb-grpc", "mqdb", MQDB.waiting, _PUSH, java_client=ROCKETMQ_SDK),
    )
}
