"""Hand-over: finds out which queues a client has dropped, and gives them back.

RocketMQ's clients do not say that rebalance has taken a queue away: they stop pulling it. So when a group changes, its
held pulls are answered, a while later, when the clients have rebalanced. What is not pulled again is given back, unless
it is the client's share: then the client has too much in hand, and will come again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection as DatabaseConnection

from mqdb.errors import MqdbError
from mqdb.rebalance import allocate_averagely
from mqdb.remoting.claims import Claims
from mqdb.remoting.database import Database
from mqdb.remoting.members import Members
from mqdb.remoting.readings import Claim
from mqdb.store.clients.clients import members_of
from mqdb.store.topics.topics import find_topics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandOverTimes:
    """How long clients are given, in seconds."""

    #: To rebalance, after a change in their group.
    rebalance: float = 1.5
    #: To pull again what they keep.
    pull_again: float = 2.0


TIMES: Final = HandOverTimes()


class HandOver:
    """Of one front, and of its loop.

    `nudge` answers the held pulls of a group.
    """

    def __init__(
        self,
        database: Database,
        members: Members,
        claims: Claims,
        nudge: Callable[[str], None],
        times: HandOverTimes = TIMES,
    ) -> None:
        self._database = database
        self._claims = claims
        self._nudge = nudge
        self._times = times
        self._changed_groups: set[str] = set()
        self._under_way: set[str] = set()
        #: By group and queue: when another client of this front has asked for a queue.
        self._wanted: dict[tuple[str, int], float] = {}
        members.on_changed.append(self._changed)
        claims.on_wanted.append(self._want)

    def _changed(self, group: str | None) -> None:
        for name in self._claims.groups if group is None else [group]:
            self._changed_groups.add(name)
            if name not in self._under_way:
                self._under_way.add(name)
                self._database.spawn(self._run(name))

    def _want(self, group: str, queue_key: int, client_id: str) -> None:
        if any(claim.queue_key == queue_key and claim.client_id != client_id for claim in self._claims.of_group(group)):
            self._wanted[group, queue_key] = self._database.loop.time()
            if group not in self._under_way:
                self._changed(group)

    async def _run(self, group: str) -> None:
        try:
            while group in self._changed_groups and self._claims.of_group(group):
                self._changed_groups.discard(group)
                await asyncio.sleep(self._times.rebalance)
                nudged_at = self._database.loop.time()
                self._nudge(group)
                await asyncio.sleep(self._times.pull_again)
                await self._give_back(group, nudged_at)
        finally:
            self._changed_groups.discard(group)
            self._under_way.discard(group)

    async def _give_back(self, group: str, nudged_at: float) -> None:
        wanted = {key for (name, key), at in self._wanted.items() if name == group and at >= nudged_at - self._patience}
        for key in [each for each in self._wanted if each[0] == group and each[1] not in wanted]:
            del self._wanted[key]
        idle = [each for each in self._claims.of_group(group) if not each.pulls and each.pulled_at < nudged_at]
        if not idle:
            return
        try:
            shares = await self._database.run(lambda connection: _shares(connection, group, idle))
            # They may have been pulled meanwhile, or lost.
            given = [
                claim
                for claim in idle
                if not (claim.is_lost or claim.pulls or claim.pulled_at >= nudged_at)
                and (claim.queue_key in wanted or (claim.client_id, claim.queue_key) not in shares)
            ]
            if given:
                await self._claims.release(given)
        except MqdbError as error:
            logger.warning("cannot give queues back", extra={"group": group, "reason": str(error)})

    @property
    def _patience(self) -> float:
        return self._times.rebalance + self._times.pull_again


def _shares(connection: DatabaseConnection, group: str, claims: Sequence[Claim]) -> Collection[tuple[str, int]]:
    """Who should have which queues of the topics of these claims, as RocketMQ's clients work it out by default."""
    client_ids = members_of(connection, group)
    shares: set[tuple[str, int]] = set()
    for route in find_topics(connection, {claim.queue.topic for claim in claims}).values():
        keys = route.read_queue_keys
        for client_id in {claim.client_id for claim in claims}:
            mine = allocate_averagely(group, client_id, range(len(keys)), client_ids)
            shares.update((client_id, keys[number]) for number in mine)
    return shares
