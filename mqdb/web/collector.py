"""The collector: what /metrics says of a broker, made of the last sample and of the rounds of this process.

docs/metrics.md says what each metric means. Only the leader says anything of the database, so that a sum over the
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
    """Collects the metrics of one broker. Any thread may scrape; none waits."""

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
        """All metrics of now."""
        is_leader = self._is_leader()
        build = [((__version__, self._revision), 1)]
        yield self._gauge("mqdb_up", "Whether the database answers this process.", self._health.database_answers())
        words = "Whether the way to the database leads to a standby, so that this process cannot serve."
        yield self._gauge("mqdb_server_is_standby", words, self._health.leads_to_standby())
        words = "Times that this process has found that the server was restarted or replaced."
        yield self._counters("mqdb_history_changes", words, (), [((), self._histories.changes)])
        yield self._gauge("mqdb_leader", "Whether this process leads: it runs the services.", is_leader)
        yield self._gauges("mqdb_build_info", "Version and revision of the schema.", ("version", "revision"), build)
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
        yield self._counters("mqdb_service_rounds", "Rounds of a service.", label, rounds)
        yield self._counters("mqdb_service_failures", "Rounds that failed.", label, failures)
        last = "mqdb_service_last_success_timestamp_seconds"
        yield self._gauges(last, "When a round ended well, in seconds since 1970.", label, succeeded)
        dispatcher = self._rounds.services.get(Dispatcher.name)
        if dispatcher is not None:
            name, words = "mqdb_dispatch_messages", "Messages that this process has given their offsets."
            yield self._counters(name, words, (), [((), dispatcher.sums["messages"])])
            took = list(dispatcher.durations.items())
            yield self._durations("mqdb_dispatch_seconds", "Durations of rounds of dispatch.", "outcome", took)
        checker = self._rounds.services.get(TransactionChecker.name)
        if checker is not None:
            sums = checker.sums
            met = [((state.value,), sums[state.value.lower()]) for state in _MET]
            words = "Half messages that were looked at, by their state when they were as old as the timeout."
            yield self._counters("mqdb_half_messages_met", words, ("state",), met)
            given_up = sums["discarded"] + sums["lost"]
            words = "Half messages that were given up."
            yield self._counters("mqdb_half_messages_given_up", words, (), [((), given_up)])

    # -- the database -------------------------------------------------------------------------

    def _of_sample(self, sample: Sample) -> Iterator[Metric]:
        age = time.monotonic() - sample.taken_at
        yield self._gauge("mqdb_sample_age_seconds", "Age of the figures of the database.", age)
        yield self._gauge("mqdb_sample_seconds", "Time that it took to ask the database.", sample.seconds)
        yield self._gauge("mqdb_leader_epoch", "Changes of leadership so far.", sample.epoch)
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
        words = "Messages that topics have ever taken."
        yield self._counters("mqdb_messages_in", words, ("topic", "kind"), bounded_counts(messages, self._most))
        words = "Messages that groups have given up."
        yield self._counters("mqdb_dlq_messages", words, ("consumer_group",), bounded_counts(dead, self._most))

    def _of_queues(self, sample: Sample) -> Iterator[Metric]:
        taken = [((each.topic, str(each.queue_id)), each.messages) for each in sample.queues_in]
        if not taken:
            return
        words = "Messages that queues have ever taken."
        yield self._counters("mqdb_queue_messages_in", words, ("topic", "queue"), bounded_counts(taken, self._most))
        labels = ("consumer_group", "topic", "queue")
        named = [((lag.group, lag.topic, str(lag.queue_id)), lag) for lag in sample.queue_lags]
        committed = bounded_counts([(names, lag.committed) for names, lag in named], self._most)
        yield self._gauges("mqdb_queue_committed_offset", "The committed offset.", labels, committed)
        behind = bounded_counts([(names, lag.lag) for names, lag in named], self._most)
        yield self._gauges("mqdb_queue_lag_messages", "Messages of a queue yet to be consumed.", labels, behind)

    def _of_groups(self, sample: Sample) -> Iterator[Metric]:
        lags = bounded(sample.lags, self._most, names=lambda lag: lag[:2], rank=lambda lag: lag.lag, merge=_merged)

        def gauges(name: str, words: str, number: Callable[[TopicLag], float], *, all_of: bool = True) -> Metric:
            numbers = [((lag.group, lag.topic), number(lag)) for lag in lags if all_of or lag.lag]
            return self._gauges(name, words, ("consumer_group", "topic"), numbers)

        yield gauges("mqdb_consumer_committed_offset", "Sum of the committed offsets.", lambda lag: lag.committed)
        yield gauges("mqdb_consumer_lag_messages", "Messages yet to be consumed.", lambda lag: lag.lag)
        words = "Age of the oldest message yet to be consumed."
        yield gauges("mqdb_consumer_lag_seconds", words, lambda lag: lag.lag_seconds, all_of=False)
        words = "Messages that failed and wait for their retry."
        yield gauges("mqdb_consumer_waiting_messages", words, lambda lag: lag.waiting)
        words = "Messages that were popped and are not acknowledged."
        yield gauges("mqdb_consumer_in_flight_messages", words, lambda lag: lag.in_flight)
        yield from self._of_members(sample)

    def _of_members(self, sample: Sample) -> Iterator[Metric]:
        # 0 for groups that have an offset and no member: what one wants to hear of.
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
        words = "Consumers of a group."
        yield self._gauges("mqdb_consumer_members", words, label, bounded_counts(members.items(), self._most))
        words = "Queues of a group that no member reads."
        yield self._gauges("mqdb_consumer_unowned_queues", words, label, bounded_counts(unowned.items(), self._most))
        by_client = bounded_counts(clients.items(), self._most)
        yield self._gauges("mqdb_clients", "Registered clients.", ("kind", "language", "version"), by_client)

    def _of_dispatch(self, sample: Sample) -> Iterator[Metric]:
        words = "Positions of the log that dispatch has yet to pass, gaps and open transactions too."
        yield self._gauge("mqdb_dispatch_behind_messages", words, sample.dispatch_behind)
        words = "Age of the oldest message that waits for its offset."
        yield self._gauge("mqdb_dispatch_behind_seconds", words, sample.dispatch_behind_seconds)
        words = "Positions of the log that the key index has yet to pass."
        yield self._gauge("mqdb_index_behind_messages", words, sample.index_behind)

    def _of_schedule(self, sample: Sample) -> Iterator[Metric]:
        levels = sum(level.waiting for level in sample.delays)
        waiting = [(("level",), levels), (("timer",), sample.timers_waiting)]
        words = "Messages that wait in delay levels, or for a time of delivery."
        yield self._gauges("mqdb_scheduled_messages", words, ("kind",), waiting)
        level = max((level.late.total_seconds() for level in sample.delays if level.late is not None), default=0.0)
        late = [(("level",), max(level, 0.0)), (("timer",), sample.timers_late_seconds)]
        yield self._gauges("mqdb_scheduled_late_seconds", "Time since the first one was due.", ("kind",), late)
        words = "Time since the first recurring send was due."
        yield self._gauge("mqdb_cron_late_seconds", words, sample.crons.late_seconds)
        yield self._gauge("mqdb_cron_paused", "Recurring sends that are paused.", sample.crons.paused)

    def _of_transactions(self, sample: Sample) -> Iterator[Metric]:
        halves = sample.halves
        by_state = [(("PREPARED",), halves.prepared), (("DISCARDED",), halves.discarded)]
        words = "Half messages that are asked about, or were given up."
        yield self._gauges("mqdb_half_messages", words, ("state",), by_state)
        words = "Age of the oldest half message that is prepared."
        yield self._gauge("mqdb_half_oldest_seconds", words, halves.oldest_seconds)

    def _of_log(self, sample: Sample) -> Iterator[Metric]:
        states = Counter(segment.state for segment in sample.segments)
        by_state = [((state.value,), states[state]) for state in SegmentState]
        yield self._gauges("mqdb_segments", "Segments of the log.", ("state",), by_state)
        words = "Messages for which there is room in segments that exist."
        yield self._gauge("mqdb_segment_room_messages", words, sample.segment_room)
        if sample.oldest_seconds is not None:
            words = "Age of the oldest message that is kept."
            yield self._gauge("mqdb_oldest_message_seconds", words, sample.oldest_seconds)
        by_part = [((part,), size) for part, size in sample.storage_bytes.items()]
        yield self._gauges("mqdb_storage_bytes", "Bytes of tables with their indexes.", ("part",), by_part)

    def _of_server(self, sample: Sample) -> Iterator[Metric]:
        words = "Transactions since the oldest snapshot that keeps vacuum waiting."
        yield self._gauge("mqdb_xmin_age_transactions", words, sample.server.xmin_age)
        words = "Age of the longest transaction of the server."
        yield self._gauge("mqdb_longest_transaction_seconds", words, sample.server.longest_transaction_seconds)
        words = "Use of the server's queue of notifications, 0 to 1."
        yield self._gauge("mqdb_notify_queue_ratio", words, sample.server.notify_queue_ratio)

    def _of_replication(self, found: Replication) -> Iterator[Metric]:
        if found.timeline is not None:
            words = "The timeline of the server: each promotion begins another one."
            yield self._gauge("mqdb_server_timeline", words, found.timeline)
        waits = found.sync_waits
        words = "Sessions whose commit waits for a synchronous standby."
        yield self._gauge("mqdb_sync_waiting_sessions", words, waits.sessions)
        yield self._gauge("mqdb_sync_wait_seconds", "Wait of the oldest of them.", waits.oldest_seconds)
        states = Counter((each.sync_state or "unknown",) for each in found.receivers)
        words = "Standbys and subscribers that are connected to the server."
        yield self._gauges("mqdb_standbys", words, ("sync_state",), states.items())
        # Several may have one name.
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
        words = "Time until a standby had replayed the last records."
        behind = bounded_counts(seconds_behind.items(), self._most)
        yield self._gauges("mqdb_standby_behind_seconds", words, label, behind)
        kept = bounded_counts([((slot.name,), slot.kept_bytes) for slot in found.slots], self._most)
        yield self._gauges("mqdb_slot_kept_bytes", "Bytes of PostgreSQL's log that a slot keeps.", ("slot",), kept)
        words = "Replication slots that are not in use."
        yield self._gauge("mqdb_slots_inactive", words, sum(not slot.is_active for slot in found.slots))
        archiver = found.archiver
        failures = 0 if archiver is None else archiver.failures
        words = "Files of PostgreSQL's log that could not be archived."
        yield self._counters("mqdb_archiver_failures", words, (), [((), failures)])
        failing = None if archiver is None else archiver.failing_seconds
        words = "Time since the last archived file, if the last try has failed."
        yield self._gauge("mqdb_archiver_failing_seconds", words, failing or 0)
        words = "Tables that cannot be changed: a publication takes them, and they have no replica identity."
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
