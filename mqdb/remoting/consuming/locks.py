"""Locks: queues that a client consumes in order.

Request codes 41 and 42. RocketMQ: RebalanceLockManager, LockBatchRequestBody.

A lock is ownership that outlives the owner's connection. A client requests the lock before it queries the offset, which
then only reads, and renews the lock every 20 s. Members in Python use the same table for their locks.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from mqdb.broker.consumers import queue_locks
from mqdb.errors import ParameterInvalid
from mqdb.fronts.database import Database
from mqdb.remoting.consuming.claims import Claims
from mqdb.remoting.consuming.places import Place, Places
from mqdb.remoting.consuming.readings import Claim
from mqdb.remoting.session.client import Client, Consumer
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.bodies import as_json, parsed_object
from mqdb.remoting.wire.frame import Frame
from mqdb.store.consumers.consumer_offsets import committed_offsets


class Locks:
    """The locks of one front's clients. Use it in the front's event loop only."""

    def __init__(
        self, database: Database, members: FrontMembers, places: Places, claims: Claims, expiry: timedelta
    ) -> None:
        self._database = database
        self._members = members
        self._places = places
        self._claims = claims
        self._expiry = expiry

    async def lock(self, connection: Connection, frame: Frame) -> Answer:
        """Code 41: lock queues or renew locks; returns the queues that the client has locked.

        The client repeats its request for the others.
        """
        said = _Said(frame.body)
        found = self._members.consumer_of(connection, said.group)
        if found is None:
            return _locked([])
        client, consumer = found
        consumer.check()
        places = await self._places_of(said, consumer)
        keys = {place.queue_key for _, place in places}
        held = [claim for claim in self._mine(client, said.group) if claim.is_locked and claim.queue_key in keys]
        renewed = await self._renew(client, said.group, held)
        mine = [
            queue for queue, place in places if place.queue_key in renewed or await self._take(client, consumer, place)
        ]
        return _locked(mine)

    async def unlock(self, connection: Connection, frame: Frame) -> Answer:
        """Code 42: release queues, after a last commit."""
        said = _Said(frame.body)
        found = self._members.consumer_of(connection, said.group)
        if found is not None:
            client, consumer = found
            keys = {place.queue_key for _, place in await self._places_of(said, consumer)}
            given = [claim for claim in self._mine(client, said.group) if claim.queue_key in keys]
            await self._claims.release(given)
        return Answer()

    def _mine(self, client: Client, group: str) -> list[Claim]:
        return [claim for claim in self._claims.of_group(group) if claim.client_id == client.client_id]

    async def _places_of(self, said: "_Said", consumer: Consumer) -> list[tuple[Mapping[str, Any], Place]]:
        """The queues in a request with their places, if the member owns queues of their topics."""
        places = []
        for queue in said.queues:
            topic, queue_id = queue.get("topic"), queue.get("queueId")
            if isinstance(topic, str) and type(queue_id) is int and consumer.owns_queues(topic):
                places.append((queue, self._places.place(await self._places.route(topic), topic, queue_id)))
        return places

    async def _renew(self, client: Client, group: str, held: list[Claim]) -> set[int]:
        owned = [claim.position() for claim in held]
        renew = partial(queue_locks.renew_queues, group=group, client_id=client.client_id, owned=owned)
        renewed = await self._database.run(partial(renew, expiry=self._expiry)) if owned else set()
        for claim in held:
            if claim.queue_key not in renewed:
                self._claims.lose(claim)
        return renewed

    async def _take(self, client: Client, consumer: Consumer, place: Place) -> bool:
        group, start = consumer.registration.group, consumer.starting_point(place.queue.topic)
        take = partial(queue_locks.take_queues, group=group, client_id=client.client_id, start=start)
        take_one = partial(take, queue_keys=[place.queue_key], expiry=self._expiry)
        if await self._claims.take_locked(client, group, place, take_one) is not None:
            return True
        committed = partial(committed_offsets, group=group, queue_keys=[place.queue_key])
        if start is None and not await self._database.run(committed):
            return self._claims.promise(client, group, place, take_one)
        return False


class _Said:
    """The contents of a request. Raises ParameterInvalid if they are not valid."""

    def __init__(self, body: bytes) -> None:
        said = parsed_object(body)
        queues = said.get("mqSet")
        if not isinstance(queues, list) or not all(isinstance(queue, dict) for queue in queues):
            raise ParameterInvalid("mqSet", type(queues).__name__, "must be a list of objects")
        self.group = str(said.get("consumerGroup"))
        self.queues: list[Mapping[str, Any]] = queues


def _locked(queues: list[Mapping[str, Any]]) -> Answer:
    return Answer(body=as_json({"lockOKMQSet": queues}))
