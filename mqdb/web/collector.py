"""The collector: the metrics of a broker for /metrics, made from the last sample and the rounds of this process.

docs/metrics.md explains each metric. Only the leader exports values from the database, so that a sum over the
processes of a broker counts nothing twice.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from mqdb import __version__
from mqdb.common.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from mqdb.common.transaction import HalfState
from mqdb.service.dispatcher import Dispatcher
from mqdb.service.transaction_checker import TransactionChecker
from mqdb.store import migrations
from mqdb.store.clients.clients import ClientKind
from mqdb.store.consumers.groups import TopicLag
from mqdb.store.replication import Replication
from mqdb.store.segments.segments import SegmentState
from mqdb.web.bounds import MOST_SERIES, OTHER, bounded, bounded_counts
from mqdb.web.broker_sample import Sample
from mqdb.web.families import Families, FamilyCollector
from mqdb.web.health import Health
from mqdb.web.histories import Histories
from mqdb.web.loop_rounds import Rounds
from mqdb.web.sampler import Sampler

_MET: Final = (HalfState.COMMITTED, HalfState.ROLLED_BACK, HalfState.PREPARED)


class BrokerCollector(FamilyCollector):
    """Collects the metrics of one broker. Any thread may scrape, and a scrape never waits for the database."""

    def __init__(
        self,
        broker_name: str,
        cluster_name: str,
        *,
        health: Health,
        rounds: Rounds,
        sampler: Sampler,
        histories: Histories,
        is_leader: Callable[[], bool],
        most_series: int = MOST_SERIES,
    ) -> None:
        super().__init__(broker_name, cluster_name)
        self._health = health
        self._rounds = rounds
        self._sampler = sampler
        self._histories = histories
        self._is_leader = is_leader
        self._most = most_series
        self._revision = migrations.head()

    def collect(self) -> Families:
        """The current values of all metrics."""
        is_leader = self._is_leader()
        build = [((__version__, self._revision), 1)]
        yield self._gauge("mqdb_up", "Whether the database answers this process.", self._health.database_answers())
        words = "Whether the DSN leads this process to a standby or a read-only server, so that it cannot serve."
        yield self._gauge("mqdb_server_is_standby", words, self._health.leads_to_standby())
        words = "Number of times that this process has found the server restarted or replaced."
        yield self._counters("mqdb_history_changes", words, (), [((), self._histories.changes)])
        yield self._gauge("mqdb_leader", "Whether this process is the leader, which runs the services.", is_leader)
        words = "Always 1; the labels are the version of mqdb and the revision of its schema."
        yield self._gauges("mqdb_build_info", words, ("version", "revision"), build)
        if is_leader:
            yield from self._of_services()
            sample = self._sampler.latest
            if sample is not None:
                yield from self._of_sample(sample)

    # -- this process -------------------------------------------------------------------------

    def _of_services(self) -> Iterator[Metric]:
        loops = [self._rounds.leadership, *self._rounds.services.values()]
        rounds = [((loop.name,), loop.rounds) for loop in loops]
        failures = [((loop.name,), loop.failures) for loop in loops]
        succeeded = [((loop.name,), loop.succeeded_at) for loop in loops if loop.succeeded_at is not None]
        label = ("service",)
        yield self._counters("mqdb_service_rounds", "Rounds of a service in this process.", label, rounds)
        yield self._counters("mqdb_service_failures", "Failed rounds of a service in this process.", label, failures)
        last = "mqdb_service_last_success_timestamp_seconds"
        yield self._gauges(last, "Unix time of the last successful round of a service.", label, succeeded)
        dispatcher = self._rounds.services.get(Dispatcher.name)
        if dispatcher is not None:
            name, words = "mqdb_dispatch_messages", "Messages to which this process has assigned offsets."
            yield self._counters(name, words, (), [((), dispatcher.sums["messages"])])
            took = list(dispatcher.durations.items())
            yield self._durations("mqdb_dispatch_seconds", "Durations of dispatch rounds.", "outcome", took)
        checker = self._rounds.services.get(TransactionChecker.name)
        if checker is not None:
            sums = checker.sums
            met = [((state.value,), sums[state.value.lower()]) for state in _MET]
            words = "Checked half messages, by their state when they became older than the timeout."
            yield self._counters("mqdb_half_messages_met", words, ("state",), met)
            given_up = sums["discarded"] + sums["lost"]
            words = "Half messages that this process has given up."
            yield self._counters("mqdb_half_messages_given_up", words, (), [((), given_up)])

    # -- the database -------------------------------------------------------------------------

    def _of_sample(self, sample: Sample) -> Iterator[Metric]:
        age = time.monotonic() - sample.taken_at
        yield self._gauge("mqdb_sample_age_seconds", "Age of the values from the database.", age)
        yield self._gauge("mqdb_sample_seconds", "Duration of the last queries for these values.", sample.seconds)
        yield self._gauge("mqdb_leader_epoch", "Number of changes of leadership.", sample.epoch)
        yield from self._of_topics(sample)
        yield from self._of_queues(sample)
        yield from self._of_groups(sample)
        yield from self._of_dispatch(sample)
        yield from self._of_schedule(sample)
        yield from self._of_transactions(sample)
        yield from self._of_log(sample)
        yield from self._of_server(sample)
        yield from self._of_replication(sample.replication)

    def _of_topics(self, sample: Sample) -> Iterator[Metric]:
        taken = sample.messages_in.items()
        messages = [((topic, _kind(topic)), number) for topic, number in taken]
        dead = [((topic.removeprefix(DLQ_PREFIX),), number) for topic, number in taken if topic.startswith(DLQ_PREFIX)]
        words = "Messages stored in the queues of a topic since its creation."
        yield self._counters("mqdb_messages_in", words, ("topic", "kind"), bounded_counts(messages, self._most))
        words = "Messages that a consumer group has given up."
        yield self._counters("mqdb_dlq_messages", words, ("consumer_group",), bounded_counts(dead, self._most))

    def _of_queues(self, sample: Sample) -> Iterator[Metric]:
        taken = [((each.topic, str(each.queue_id)), each.messages) for each in sample.queues_in]
        if not taken:
            return
        words = "Messages stored in a queue since its creation."
        yield self._counters("mqdb_queue_messages_in", words, ("topic", "queue"), bounded_counts(taken, self._most))
        labels = ("consumer_group", "topic", "queue")
        named = [((lag.group, lag.topic, str(lag.queue_id)), lag) for lag in sample.queue_lags]
        committed = bounded_counts([(names, lag.committed) for names, lag in named], self._most)
        words = "The committed offset of a consumer group in a queue."
        yield self._gauges("mqdb_queue_committed_offset", words, labels, committed)
        behind = bounded_counts([(names, lag.lag) for names, lag in named], self._most)
        words = "Messages of a queue that a consumer group has yet to consume."
        yield self._gauges("mqdb_queue_lag_messages", words, labels, behind)

    def _of_groups(self, sample: Sample) -> Iterator[Metric]:
        lags = bounded(sample.lags, self._most, names=lambda lag: lag[:2], rank=lambda lag: lag.lag, merge=_merged)

        def gauges(name: str, words: str, number: Callable[[TopicLag], float], *, all_of: bool = True) -> Metric:
            numbers = [((lag.group, lag.topic), number(lag)) for lag in lags if all_of or lag.lag]
            return self._gauges(name, words, ("consumer_group", "topic"), numbers)

        words = "Sum of the committed offsets of a consumer group in a topic."
        yield gauges("mqdb_consumer_committed_offset", words, lambda lag: lag.committed)
        words = "Messages of a topic that a consumer group has yet to consume."
        yield gauges("mqdb_consumer_lag_messages", words, lambda lag: lag.lag)
        words = "Age of the oldest message that a consumer group has yet to consume."
        yield gauges("mqdb_consumer_lag_seconds", words, lambda lag: lag.lag_seconds, all_of=False)
        words = "Failed messages of a consumer group that wait for their retry."
        yield gauges("mqdb_consumer_waiting_messages", words, lambda lag: lag.waiting)
        words = "Messages that a consumer group has popped but not acknowledged."
        yield gauges("mqdb_consumer_in_flight_messages", words, lambda lag: lag.in_flight)
        yield from self._of_members(sample)

    def _of_members(self, sample: Sample) -> Iterator[Metric]:
        # A group that has offsets but no members is reported with 0, because it needs attention.
        members = Counter({(lag.group,): 0 for lag in sample.lags})
        unowned = members.copy()
        for lag in sample.lags:
            unowned[lag.group,] += lag.unowned_queues
        clients: Counter[tuple[str, str, str]] = Counter()
        for each in sample.clients:
            clients[each.kind, each.language, each.version] += each.clients
            if each.kind == ClientKind.CONSUMER:
                members[each.group,] += each.clients
        label = ("consumer_group",)
        words = "Number of consumers in a group."
        yield self._gauges("mqdb_consumer_members", words, label, bounded_counts(members.items(), self._most))
        words = "Queues that no member of a group reads."
        yield self._gauges("mqdb_consumer_unowned_queues", words, label, bounded_counts(unowned.items(), self._most))
        by_client = bounded_counts(clients.items(), self._most)
        words = "Registered producers and consumers."
        yield self._gauges("mqdb_clients", words, ("kind", "language", "version"), by_client)

    def _of_dispatch(self, sample: Sample) -> Iterator[Metric]:
        words = "Positions of the log that dispatch has yet to pass, including gaps and open transactions."
        yield self._gauge("mqdb_dispatch_behind_messages", words, sample.dispatch_behind)
        words = "Age of the oldest message that waits for its offset."
        yield self._gauge("mqdb_dispatch_behind_seconds", words, sample.dispatch_behind_seconds)
        words = "Positions of the log that the key index has yet to pass."
        yield self._gauge("mqdb_index_behind_messages", words, sample.index_behind)

    def _of_schedule(self, sample: Sample) -> Iterator[Metric]:
        levels = sum(level.waiting for level in sample.delays)
        waiting = [(("level",), levels), (("timer",), sample.timers_waiting)]
        words = "Messages that wait in delay levels or for a delivery time."
        yield self._gauges("mqdb_scheduled_messages", words, ("kind",), waiting)
        level = max((level.late.total_seconds() for level in sample.delays if level.late is not None), default=0.0)
        late = [(("level",), max(level, 0.0)), (("timer",), sample.timers_late_seconds)]
        words = "Time since the first scheduled message became due."
        yield self._gauges("mqdb_scheduled_late_seconds", words, ("kind",), late)
        words = "Time since the first recurring send became due."
        yield self._gauge("mqdb_cron_late_seconds", words, sample.crons.late_seconds)
        yield self._gauge("mqdb_cron_paused", "Paused recurring sends.", sample.crons.paused)

    def _of_transactions(self, sample: Sample) -> Iterator[Metric]:
        halves = sample.halves
        by_state = [(("PREPARED",), halves.prepared), (("DISCARDED",), halves.discarded)]
        words = "Half messages whose producers are asked, and half messages that were given up."
        yield self._gauges("mqdb_half_messages", words, ("state",), by_state)
        words = "Age of the oldest half message in state PREPARED."
        yield self._gauge("mqdb_half_oldest_seconds", words, halves.oldest_seconds)

    def _of_log(self, sample: Sample) -> Iterator[Metric]:
        states = Counter(segment.state for segment in sample.segments)
        by_state = [((state.value,), states[state]) for state in SegmentState]
        yield self._gauges("mqdb_segments", "Segments of the log.", ("state",), by_state)
        words = "Messages for which the existing segments have room."
        yield self._gauge("mqdb_segment_room_messages", words, sample.segment_room)
        if sample.oldest_seconds is not None:
            words = "Age of the oldest stored message."
            yield self._gauge("mqdb_oldest_message_seconds", words, sample.oldest_seconds)
        by_part = [((part,), size) for part, size in sample.storage_bytes.items()]
        yield self._gauges("mqdb_storage_bytes", "Size of tables and their indexes.", ("part",), by_part)

    def _of_server(self, sample: Sample) -> Iterator[Metric]:
        words = "Transactions since the oldest snapshot that holds back vacuum."
        yield self._gauge("mqdb_xmin_age_transactions", words, sample.server.xmin_age)
        words = "Age of the longest transaction on the server."
        yield self._gauge("mqdb_longest_transaction_seconds", words, sample.server.longest_transaction_seconds)
        words = "Used part of PostgreSQL's queue of notifications, from 0 to 1."
        yield self._gauge("mqdb_notify_queue_ratio", words, sample.server.notify_queue_ratio)

    def _of_replication(self, found: Replication) -> Iterator[Metric]:
        if found.timeline is not None:
            words = "PostgreSQL's timeline; each promotion begins a new timeline."
            yield self._gauge("mqdb_server_timeline", words, found.timeline)
        waits = found.sync_waits
        words = "Sessions whose commit waits for a synchronous standby."
        yield self._gauge("mqdb_sync_waiting_sessions", words, waits.sessions)
        words = "Age of the oldest commit that waits for a synchronous standby."
        yield self._gauge("mqdb_sync_wait_seconds", words, waits.oldest_seconds)
        states = Counter((each.sync_state or "unknown",) for each in found.receivers)
        words = "Standbys and subscribers connected to the server."
        yield self._gauges("mqdb_standbys", words, ("sync_state",), states.items())
        # Several standbys may have the same name.
        bytes_behind: dict[tuple[str, ...], float] = {}
        seconds_behind: dict[tuple[str, ...], float] = {}
        for each in found.receivers:
            if each.behind_bytes is not None and each.behind_seconds is not None:
                names = (each.name,)
                bytes_behind[names] = max(bytes_behind.get(names, 0), each.behind_bytes)
                seconds_behind[names] = max(seconds_behind.get(names, 0), each.behind_seconds)
        label = ("standby",)
        words = "Bytes that a standby has yet to replay."
        behind = bounded_counts(bytes_behind.items(), self._most)
        yield self._gauges("mqdb_standby_behind_bytes", words, label, behind)
        words = "Time that a standby took to replay the latest records."
        behind = bounded_counts(seconds_behind.items(), self._most)
        yield self._gauges("mqdb_standby_behind_seconds", words, label, behind)
        kept = bounded_counts([((slot.name,), slot.kept_bytes) for slot in found.slots], self._most)
        words = "Bytes of PostgreSQL's log that a replication slot keeps."
        yield self._gauges("mqdb_slot_kept_bytes", words, ("slot",), kept)
        words = "Replication slots without a connection."
        yield self._gauge("mqdb_slots_inactive", words, sum(not slot.is_active for slot in found.slots))
        archiver = found.archiver
        failures = 0 if archiver is None else archiver.failures
        words = "Failed attempts to archive a file of PostgreSQL's log."
        yield self._counters("mqdb_archiver_failures", words, (), [((), failures)])
        failing = None if archiver is None else archiver.failing_seconds
        words = "Time since a file was last archived, if the latest attempt failed; otherwise 0."
        yield self._gauge("mqdb_archiver_failing_seconds", words, failing or 0)
        words = "Tables without a replica identity in a publication, in which PostgreSQL refuses changes."
        yield self._gauge("mqdb_published_tables_without_identity", words, found.unidentified_tables)


def _kind(topic: str) -> str:
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dlq"
    return "system" if is_system_topic(topic) else "normal"


def _merged(rest: Sequence[TopicLag]) -> TopicLag:
    return TopicLag(
        OTHER,
        OTHER,
        lag=sum(each.lag for each in rest),
        lag_seconds=max(each.lag_seconds for each in rest),
        waiting=sum(each.waiting for each in rest),
        in_flight=sum(each.in_flight for each in rest),
        committed=sum(each.committed for each in rest),
        unowned_queues=sum(each.unowned_queues for each in rest),
    )
