"""Planning a read of several brokers on the driver: each broker has its own plan, and limits apply to all together.

A single broker is a cluster of one. If a broker is unavailable, planning waits, because no broker may be skipped
silently.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager

from mqdb.common.dsn import redact
from mqdb.errors import BrokerMisnamed, MqdbError, TopicNotFound
from mqdb.pipeline.errors import StreamUnreadable
from mqdb.pipeline.read import planner
from mqdb.pipeline.read.cluster_options import SourceCluster
from mqdb.pipeline.read.offsets import ClusterOffset, StreamOffset
from mqdb.pipeline.read.planning import StreamPlanner, plan_batch
from mqdb.pipeline.read.source_options import SourceOptions
from mqdb.pipeline.read.tasks import Task

logger = logging.getLogger(__name__)


def cluster_tasks(cluster: SourceCluster) -> list[tuple[str, Task]]:
    """The tasks of a batch read as of now, each with its broker; brokers are queried one after the other.

    Raises the errors of `plan_batch`, BrokerMisnamed, and TopicNotFound for a topic that no broker has.
    """
    tasks: list[tuple[str, Task]] = []
    topics: set[str] = set()
    for name, options in cluster.brokers.items():
        with _speaking_of(name):
            plan = plan_batch(options)
            _check_name(name, plan.broker, options)
        topics |= plan.topics
        tasks += [(name, task) for task in plan.tasks]
    _check_topics(cluster, topics)
    return tasks


class ClusterPlanner:
    """Plans the batches of a stream for the driver, over all brokers.

    Offsets are in the form of `ClusterOffset.to_dict`.
    """

    def __init__(self, cluster: SourceCluster) -> None:
        self._cluster = cluster
        self._options = cluster.any_options
        self._planners = {name: StreamPlanner(options) for name, options in cluster.brokers.items()}
        # By the names in the databases, because a single broker has no name in the url.
        self._names: dict[str, str] | None = None
        self._left_out_before: Set[str] = frozenset()
        self._has_target = False
        self._last_batch_at = time.monotonic()

    def close(self) -> None:
        """Release the connections."""
        for each in self._planners.values():
            each.close()

    def initial(self) -> ClusterOffset:
        """The offsets at which a query without a checkpoint starts."""
        offsets = {}
        for name, each in self._known().items():
            with _speaking_of(each):
                offsets[name] = self._planners[each].initial()
        _check_topics(self._cluster, (topic for offset in offsets.values() for topic in offset.topic_ids))
        return ClusterOffset(offsets)

    def set_target(self) -> None:
        """Limit the query to the messages that exist now: Trigger.AvailableNow."""
        for name, each in self._planners.items():
            with _speaking_of(name):
                each.set_target()
        self._has_target = True

    def latest(
        self, start: ClusterOffset, *, at_most: int | None = None, at_least: int | None = None
    ) -> tuple[ClusterOffset, ClusterOffset]:
        """The end of the next batch, and its end without limits.

        Fewer messages than `at_least` are left for later, unless a target is set, or maxTriggerDelay has passed since
        the last batch or the start of the query. A broker that is not in `start` is read from its beginning. Raises the
        errors of `StreamPlanner.backlog`, and StreamUnreadable if a broker is missing in the url.
        """
        left_out = self._left_out(start)
        backlogs = {}
        for name, each in self._known().items():
            with _speaking_of(each):
                backlogs[name] = self._planners[each].backlog(_of_broker(start, name))
        if self._options.reading.fail_on_data_loss:
            _check_topics(self._cluster, (topic for backlog in backlogs.values() for topic in backlog.topics))
        first = {(name, queue): offset for name, backlog in backlogs.items() for queue, offset in backlog.first.items()}
        end = {(name, queue): offset for name, backlog in backlogs.items() for queue, offset in backlog.end.items()}
        # After the end: the newest messages were lost, which does not matter here.
        lag = sum(max(past - first[place], 0) for place, past in end.items())
        whole = {name: self._planner(name).whole(backlog) for name, backlog in backlogs.items()}
        now = time.monotonic()
        is_early = now - self._last_batch_at < self._options.max_trigger_delay_seconds
        if at_least is not None and not self._has_target and lag < at_least and is_early:
            return start, ClusterOffset(left_out | whole)
        if lag > 0:
            self._last_batch_at = now
        if at_most is not None:
            end = planner.limited(first, end, at_most)
        reached = {}
        for name, backlog in backlogs.items():
            own = {queue: past for (broker, queue), past in end.items() if broker == name}
            reached[name] = self._planner(name).offset(backlog, own)
        return ClusterOffset(left_out | reached), ClusterOffset(left_out | whole)

    def tasks(self, start: ClusterOffset, end: ClusterOffset) -> list[tuple[str, Task]]:
        """The tasks of the batch between two offsets, each with its broker in the url.

        Equal offsets give the same messages, as long as these are kept.
        """
        left_out = self._left_out(end)
        tasks = []
        for name, past in end.brokers.items():
            if name in left_out:
                continue
            each = self._known()[name]
            with _speaking_of(each):
                tasks += [(each, task) for task in self._planners[each].tasks(_of_broker(start, name), past)]
        return tasks

    def _known(self) -> Mapping[str, str]:
        """The names of the brokers in their databases, and in the url. Raises BrokerMisnamed if they differ."""
        if self._names is None:
            names = {}
            for name, each in self._planners.items():
                with _speaking_of(name):
                    _check_name(name, each.broker, self._cluster.brokers[name])
                names[each.broker] = name
            self._names = names
        return self._names

    def _planner(self, name: str) -> StreamPlanner:
        return self._planners[self._known()[name]]

    def _left_out(self, offset: ClusterOffset) -> dict[str, StreamOffset]:
        """The offsets of brokers that are no longer read. The offsets stay in the checkpoint, in case a broker returns.

        Raises StreamUnreadable unless failOnDataLoss is false.
        """
        left_out = {name: each for name, each in offset.brokers.items() if name not in self._known()}
        if left_out:
            brokers = ", ".join(map(repr, left_out))
            reason = f"it has offsets of broker {brokers}, and the url leads to {', '.join(map(repr, self._known()))}"
            if self._options.reading.fail_on_data_loss:
                hint = "; name all brokers, or set failOnDataLoss=false to go on without the missing ones"
                raise StreamUnreadable(json.dumps(offset.to_dict()), reason + hint)
            if left_out.keys() != self._left_out_before:
                self._left_out_before = left_out.keys()
                logger.warning("a stream continues without some of its brokers: %s", reason)
        return left_out


def _of_broker(offset: ClusterOffset, name: str) -> StreamOffset:
    """The offsets of a broker; empty for a new broker, whose queues are read from their beginning."""
    return offset.brokers.get(name) or StreamOffset(name, {}, {})


def _check_name(name: str, found: str, options: SourceOptions) -> None:
    if name and name != found:
        raise BrokerMisnamed(redact(options.url), f"this database is broker {found!r}, not {name!r}")


def _check_topics(cluster: SourceCluster, found: Iterable[str]) -> None:
    """Raise TopicNotFound for a named topic that no broker has."""
    topics = set(found)
    for options in cluster.brokers.values():
        for topic in options.subscription.named_topics:
            if topic not in topics:
                raise TopicNotFound(topic)


@contextmanager
def _speaking_of(name: str) -> Iterator[None]:
    """Note in mqdb's errors which broker of the list they concern."""
    try:
        yield
    except MqdbError as error:
        if name:
            error.add_note(f"while broker {name!r} was queried")
        raise
