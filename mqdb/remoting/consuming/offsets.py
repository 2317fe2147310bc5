"""Offsets: the progress of groups, and the first and last offsets of queues. Request codes 14, 15, 29 to 32.

If a member of a group queries the group's offset, it is about to read from there, so the query takes the queue.
RocketMQ: ConsumerManageProcessor, AdminBrokerProcessor.
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Final

from mqdb.broker.consumers import group_offsets
from mqdb.broker.consumers.offsets import begin_queues, search_offset
from mqdb.broker.consumers.pull import PullRequest, pull
from mqdb.broker.log.proofs import proven
from mqdb.common.group import check_group_name
from mqdb.common.topic import retry_topic
from mqdb.errors import MqdbError, ResponseCode, TopicNotFound
from mqdb.fronts.database import Database
from mqdb.fronts.known_groups import KnownGroups
from mqdb.remoting.consuming.claims import ClaimListener, Claims
from mqdb.remoting.consuming.places import Place, Places
from mqdb.remoting.consuming.readings import Claim, Reading
from mqdb.remoting.session.client import Consumer
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.frame import Frame
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.consumers.group_offsets import ReadQueue, committed_positions
from mqdb.store.dispatch.queues import Ends
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Maximum number of readings that are remembered for a connection.
_MOST_READINGS: Final = 4_096


class ClientOffsets:
    """The offsets of one front's clients. Use it in the front's event loop only."""

    def __init__(
        self,
        database: Database,
        members: FrontMembers,
        groups: KnownGroups,
        places: Places,
        claims: Claims,
        listener: ClaimListener,
        commit_seconds: float,
    ) -> None:
        self._database = database
        self._members = members
        self._groups = groups
        self._places = places
        self._claims = claims
        self._listener = listener
        self._commit_seconds = commit_seconds
        #: Readings of clients that read without owning: by connection, then by group and queue.
        self._readings: dict[Connection, dict[tuple[str, int], Reading]] = {}
        self._unwritten: dict[Reading, int] = {}
        self._writing = asyncio.Lock()
        database.spawn(self._write_forever())

    async def close(self) -> None:
        """Write the offsets that clients have committed."""
        await self._write()

    def lost(self, connection: Connection) -> None:
        """Discard the readings of a closed connection."""
        self._readings.pop(connection, None)

    def reading(self, connection: Connection, group: str, place: Place) -> Reading:
        """The reading of a client that reads a queue without owning it."""
        # Nothing would remove the readings of a connection that has been closed since.
        readings = self._readings.setdefault(connection, {}) if connection.is_open else {}
        reading = readings.get((group, place.queue_key))
        if reading is None or reading.history != place.history:
            if len(readings) == _MOST_READINGS:
                del readings[next(iter(readings))]
            before, reading = reading, Reading(group, place, place.history)
            readings[group, place.queue_key] = reading
            if before is not None:
                reading.follow(before)
        return reading

    async def look_again(self, reading: Reading) -> None:
        """Move a reader back to its group's offset if the log lacks the last message that it read.

        After a simple restart of the server, the log has this message.
        """
        newest = reading.newest
        if not reading.is_doubtful or newest is None:
            return
        key = reading.queue_key
        is_same_log, stored = await self._database.run(
            lambda connection: (
                bool(proven(connection, {key: newest})),
                committed_offsets(connection, reading.group, [key]),
            )
        )
        reading.is_doubtful = False
        if not is_same_log and key in stored:
            reading.goes_on_at, reading.is_told = stored[key], False

    async def begin(self, consumer: Consumer) -> None:
        """Set the starting point of a group in new topics when its first member registers.

        A later query of the offset does not set it.

        Messages sent as soon as a client's start has returned are therefore delivered to it.
        """
        group = consumer.registration.group
        for topic in consumer.filters:
            start = consumer.starting_point(topic)
            if start is None or not consumer.owns_queues(topic):
                continue
            with suppress(MqdbError):  # no such topic, or no database: the starting point is set later
                keys = (await self._places.route(topic)).queue_keys
                await self._database.run(partial(begin_queues, group=group, queue_keys=keys, start=start))

    # -- 14 -----------------------------------------------------------------------------------

    async def query(self, connection: Connection, frame: Frame) -> Answer:
        """Code 14: the group's offset in a queue; returns 22 if the group has no offset.

        If another member still has the queue, the pulls wait for it, and get its last offset then. There is no code for
        "not now": clients of version 4.9 treat any error like a group without an offset. Source:
        RemoteBrokerOffsetStore.readOffset.
        """
        group, place = frame.fields.get("consumerGroup", ""), await self._places.of(frame)
        found = self._members.consumer_of(connection, group)
        if found is None or not found[1].owns_queues(place.queue.topic):
            return await self._committed(group, place)
        client, consumer = found
        consumer.check()
        if consumer.starting_point(place.queue.topic) is None:
            answer = await self._committed(group, place)
            if answer.code != ResponseCode.SUCCESS:
                return answer  # the client chooses the offset, and its first pull takes the queue
        claim = await self._claims.take(client, consumer, place)
        if claim is None:
            return await self._committed(group, place)
        claim.goes_on_at = None
        return _offset(claim.wanted)

    async def _committed(self, group: str, place: Place) -> Answer:
        key = place.queue_key
        await self._write()
        await self._claims.write_unwritten(group)
        found = await self._database.run(partial(committed_offsets, group=group, queue_keys=[key]))
        if key not in found:
            remark = f"group {group} has no offset in {place.queue}"
            return Answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return _offset(found[key])

    # -- 15 -----------------------------------------------------------------------------------

    async def update(self, connection: Connection, frame: Frame) -> Answer:
        """Code 15: an offset of the group, which is written soon.

        The offset is ignored if the client has lost the queue.
        """
        group, place, offset = (
            frame.fields.get("consumerGroup", ""),
            await self._places.of(frame),
            frame.position("commitOffset"),
        )
        check_group_name(group)
        claim = self.commit(connection, group, place, offset)
        if claim is not None:
            self._listener.committed(claim)
        return Answer()

    def commit(self, connection: Connection, group: str, place: Place, offset: int) -> Claim | None:
        """Note an offset from an update or a pull; returns the client's claim on the queue, or None."""
        if offset < 0:
            return None
        found = self._members.consumer_of(connection, group)
        client = self._members.client_of(connection) if found is None else found[0]
        claim = None if client is None else self._claims.of(client.client_id, group, place.queue_key)
        if claim is not None:
            self._claims.commit(claim, offset)
            return claim
        if found is not None and (not found[1].shares or found[1].owns_queues(place.queue.topic)):
            return None
        reading = self.reading(connection, group, place)
        if reading.may_commit(offset):
            self._unwritten[reading] = offset
        return None

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(self._commit_seconds)
            try:
                await self._write()
            except Exception as error:
                fields = {"reason": str(error)}
                logger.exception("could not commit offsets of readers; will retry: %(reason)s", fields, extra=fields)

    async def _write(self) -> None:
        async with self._writing:  # a request for a group's offsets waits for writes in progress, too
            by_group: dict[str, dict[Reading, int]] = {}
            for reading, offset in self._unwritten.items():
                by_group.setdefault(reading.group, {})[reading] = offset
            self._unwritten = {}
            for group, wanted in by_group.items():
                try:
                    await self._write_group(group, wanted)
                except MqdbError as error:
                    fields = {"group": group, "reason": str(error)}
                    sentence = "could not commit offsets of readers of group %(group)s: %(reason)s"
                    logger.log(level_of(error), sentence, fields, extra=fields)

    async def _write_group(self, group: str, wanted: dict[Reading, int]) -> None:
        if await self._groups.pops(group):
            # A client that pops repeats the offset of its retry topic, even before its first heartbeat on a connection.
            own = retry_topic(group)
            wanted = {reading: offset for reading, offset in wanted.items() if reading.queue.topic != own}
        for reading in wanted:
            await self.look_again(reading)
        wanted = {reading: offset for reading, offset in wanted.items() if reading.may_commit(offset)}
        new = [reading for reading in wanted if not reading.knows_reset]
        if new:
            keys = [reading.queue_key for reading in new]
            found = await self._database.run(partial(committed_positions, group=group, queue_keys=keys))
            reset_at = {position.queue_key: position.reset_at for position in found}
            for reading in new:
                reading.reset_at, reading.knows_reset = reset_at.get(reading.queue_key), True
        # If several clients read a queue for the same group, the last commit counts.
        last = {reading.queue_key: (reading, offset) for reading, offset in wanted.items()}
        positions = [
            ReadQueue(key, offset, reading.segment_at(offset), reading.reset_at, reading.history)
            for key, (reading, offset) in last.items()
        ]
        refused = await self._database.run(
            lambda connection: group_offsets.commit_without_owner(connection, group, positions)
        )
        for key, owner in refused.owned.items():
            fields = {"group": group, "queue": str(last[key][0].queue), "owner": owner}
            sentence = "did not commit the offset of group %(group)s in queue %(queue)s: member %(owner)s owns it"
            logger.warning(sentence, fields, extra=fields)
        if refused.reset:
            keys = sorted(refused.reset)
            moved = await self._database.run(partial(committed_positions, group=group, queue_keys=keys))
            for position in moved:
                reading = last[position.queue_key][0]
                if position.reset_at == reading.reset_at:  # the log is a different one, which the next request detects
                    self._places.forget(reading.queue.topic)
                    continue
                reading.reset_at = position.reset_at
                reading.goes_on_at, reading.is_told = position.next_offset, False

    # -- 29, 30, 31 ---------------------------------------------------------------------------

    async def search(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 29: the first offset whose message was stored at or after a time; UPPER: the last one stored by then.

        If all messages were stored later, UPPER returns the first offset. Clients of version 4.9 send no boundary type.
        Source: ConsumeQueue.binarySearchInQueueByTime, DefaultMessageStore.getOffsetInQueueByTime.
        """
        is_upper = frame.fields.get("boundaryType", "").upper() == "UPPER"
        place, time = await self._places.of(frame), frame.moment("timestamp", later_ms=int(is_upper))
        first = await self._database.run(partial(search_offset, queue_key=place.queue_key, time=time))
        return _offset(max(first - 1, (await self._ends(frame)).min_offset) if is_upper else first)

    async def maximum(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 30: the offset that the next message of a queue will have."""
        return _offset((await self._ends(frame)).max_offset)

    async def minimum(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 31: the first offset of a queue whose message still exists."""
        return _offset((await self._ends(frame)).min_offset)

    async def earliest_time(self, _connection: Connection, frame: Frame) -> Answer:
        """Code 32: the store time of a queue's first existing message, in ms since 1970; -1 if the queue is empty."""
        place, first = await self._places.of(frame), (await self._ends(frame)).min_offset
        first_one = [PullRequest(place.queue, place.queue_key, first)]
        results, _ = await self._database.run(partial(pull, requests=first_one, limit=1))
        times = [message.store_ms for result in results for message in result.messages]
        return Answer(fields={"timestamp": str(times[0] if times else -1)})

    async def _ends(self, frame: Frame) -> Ends:
        place = await self._places.of(frame)
        ends = await self._database.run(partial(group_offsets.queue_ends, queue_key=place.queue_key))
        if ends is None:
            self._places.forget(place.queue.topic)
            raise TopicNotFound(place.queue.topic)
        return ends


def _offset(offset: int) -> Answer:
    return Answer(fields={"offset": str(offset)})
