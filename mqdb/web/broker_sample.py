"""A sample: all values from the database that /metrics shows, read in one pass."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from mqdb.common.topic import TIMER_TOPIC
from mqdb.store import leader, replication, server_state
from mqdb.store.clients import clients
from mqdb.store.clients.clients import ClientCount
from mqdb.store.consumers import groups
from mqdb.store.consumers.groups import QueueLag, TopicLag
from mqdb.store.dispatch import checkpoints, queues
from mqdb.store.dispatch.queues import QueueTaken
from mqdb.store.replication import Replication
from mqdb.store.schedule import cron, delay_queues, timer_steps
from mqdb.store.schedule.cron import CronsAtWork
from mqdb.store.schedule.delay_queues import LevelStanding
from mqdb.store.segments import partitions, segments
from mqdb.store.segments.segments import Segment
from mqdb.store.server_state import ServerState
from mqdb.store.transactions import open_halves
from mqdb.store.transactions.open_halves import OpenHalves

_PARTS = {"log": "commit_log", "queue": "queue_run", "index": "message_index", "timer": "timer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample of a broker. The fields are read one after another, so their counts may not match exactly."""

    taken_at: float
    """The time at which the sample was complete, by the monotonic clock."""
    seconds: float
    """The seconds that it took to take the sample."""
    epoch: int
    messages_in: dict[str, int]
    """The number of messages stored in each topic since its creation."""
    lags: list[TopicLag]
    switched_off: frozenset[str]
    """The groups whose members get no messages."""
    queues_in: list[QueueTaken]
    """`queues_in` and `queue_lags` cover only the topics that are measured queue by queue."""
    queue_lags: list[QueueLag]
    clients: list[ClientCount]
    dispatch_behind: int
    """Positions that dispatch has yet to pass, including gaps and records that are not visible yet."""
    dispatch_behind_seconds: float
    dispatch_ages: list[float]
    """For each batch that was dispatched in the last minute, the seconds that its first record had waited."""
    index_behind: int
    delays: list[LevelStanding]
    timers_waiting: int
    """The number of waiting timers; recalled timers count until their delivery time."""
    timers_late_seconds: float
    halves: OpenHalves
    crons: CronsAtWork
    segments: list[Segment]
    segment_room: int
    """The number of unused positions in the existing segments."""
    oldest_seconds: float | None
    storage_bytes: dict[str, int]
    server: ServerState
    replication: Replication


def take(
    connection: Connection,
    service_set: str,
    storage_bytes: dict[str, int] | None = None,
    per_queue: Sequence[str] = (),
) -> Sample:
    """Take a sample. `storage_bytes` are the sizes in an older sample; without them, the size of each file is read.
    `per_queue` are the topics that are measured queue by queue.

    Reads no messages except one record for each group and topic with a lag, and the first record of each delay level.
    """
    begun = time.monotonic()
    incumbent = leader.find(connection, service_set)
    newest = checkpoints.newest(connection)
    # Read after the checkpoints, which could otherwise be ahead of the log.
    log = segments.log(connection)
    found = segments.find_all(connection)
    timers = timer_steps.newest(connection)
    # Read after the timer step, for the same reason.
    messages_in = queues.ends_of_topics(connection)
    return Sample(
        epoch=0 if incumbent is None else incumbent.epoch,
        messages_in=messages_in,
        lags=groups.lags(connection),
        switched_off=groups.switched_off(connection),
        queues_in=queues.ends_in_topics(connection, per_queue) if per_queue else [],
        queue_lags=groups.queue_lags(connection, per_queue) if per_queue else [],
        clients=clients.count_all(connection),
        dispatch_behind=max(log.last_pos - newest["dispatch"].done_pos, 0),
        dispatch_behind_seconds=checkpoints.oldest_unreached_seconds(connection, "dispatch"),
        dispatch_ages=checkpoints.latest_ages(connection, "dispatch"),
        index_behind=max(log.last_pos - newest["index"].done_pos, 0),
        delays=delay_queues.list_delays(connection),
        timers_waiting=timers.waiting + max(messages_in[TIMER_TOPIC] - timers.next_offset, 0),
        timers_late_seconds=timer_steps.late_seconds(connection),
        halves=open_halves.count(connection),
        crons=cron.at_work(connection),
        segments=found,
        segment_room=segments.room(found, log.last_pos),
        oldest_seconds=segments.oldest_seconds(connection),
        storage_bytes=storage_bytes or storage(connection),
        server=server_state.look(connection),
        replication=replication.look(connection),
        seconds=(now := time.monotonic()) - begun,
        taken_at=now,
    )


def storage(connection: Connection) -> dict[str, int]:
    """The size of each part of the broker, in bytes."""
    return {part: partitions.size_bytes(connection, parent) for part, parent in _PARTS.items()}
