"""Hand-over: detects the queues that a client has dropped, and releases them.

RocketMQ's clients do not report that rebalance has taken a queue away: they commit its offset and stop pulling it. When
a group changes, the front therefore waits for its clients to rebalance, and then answers their held pulls. A client
that commits a queue outside its share has probably just dropped it, so its pull is answered immediately. A queue that
is not pulled again is released, unless it belongs to the client's share: in that case the client holds too many
messages, and will pull again later. In a group that has started to pop, no client has a share.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection as DatabaseConnection

from mqdb.common.group import ConsumeMode
from mqdb.errors import MqdbError
from mqdb.fronts.database import Database
from mqdb.rebalance import allocate_averagely
from mqdb.remoting.consuming.claims import Claims
from mqdb.remoting.consuming.holds import Holds, Wake
from mqdb.remoting.consuming.readings import Claim
from mqdb.store.clients.clients import members_of
from mqdb.store.consumers import groups
from mqdb.store.topics.topics import find_topics
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandOverTimes:
    """Times that clients have for their reactions, in seconds."""

    #: Time to rebalance after a change in the group.
    rebalance: float = 1.5
    #: Time to pull the queues again that a client keeps.
    pull_again: float = 2.0
    #: Time to pull a queue again that is outside the client's share and that the client has just committed.
    pull_dropped_again: float = 0.3


class HandOver:
    """The hand-over of queues in one front. Use it in the front's event loop only."""

    def __init__(self, database: Database, claims: Claims, holds: Holds, times: HandOverTimes) -> None:
        self._database = database
        self._claims = claims
        self._holds = holds
        self._times = times
        self._changed_groups: set[str] = set()
        self._under_way: set[str] = set()
        #: By group: claims that were committed while a hand-over of the group is in progress.
        self._committed: dict[str, set[Claim]] = {}
        #: By group and queue: the time when another client of this front requested the queue.
        self._wanted: dict[tuple[str, int], float] = {}

    # -- what happens in groups ---------------------------------------------------------------

    def changed(self, group: str | None) -> None:
        """The members or free queues of a group may have changed; None stands for all groups."""
        for name in self._claims.groups if group is None else [group]:
            self._changed_groups.add(name)
            if name not in self._under_way:
                self._under_way.add(name)
                self._database.spawn(self._run(name))

    def wanted(self, group: str, queue_key: int, client_id: str) -> None:
        """A client requested a queue that is not free."""
        owner = self._claims.owner(group, queue_key)
        if owner is not None and owner.client_id != client_id:
            self._wanted[group, queue_key] = self._database.loop.time()
            if group not in self._under_way:
                self.changed(group)

    def committed(self, claim: Claim) -> None:
        """A client reported an offset by other means than a pull."""
        group = claim.group
        if group in self._under_way:
            if group not in self._committed:
                self._committed[group] = set()
                self._database.spawn(self._give_back_committed(group))
            self._committed[group].add(claim)

    # -- giving back --------------------------------------------------------------------------

    async def _run(self, group: str) -> None:
        try:
            while group in self._changed_groups and self._claims.of_group(group):
                self._changed_groups.discard(group)
                await asyncio.sleep(self._times.rebalance)
                claims = self._claims.of_group(group)
                nudged_at = self._nudge(claims)
                await asyncio.sleep(self._times.pull_again)
                await self._give_back(group, claims, nudged_at)
        finally:
            self._changed_groups.discard(group)
            self._under_way.discard(group)

    async def _give_back(self, group: str, claims: Sequence[Claim], nudged_at: float) -> None:
        """Release claims that were not pulled again and that are outside the share or wanted by another member."""
        earliest = nudged_at - self._times.rebalance - self._times.pull_again
        self._wanted = {key: at for key, at in self._wanted.items() if key[0] != group or at >= earliest}
        idle = [claim for claim in claims if _is_idle(claim, nudged_at)]
        foreign = await self._not_shares(group, idle)
        wanted = [claim for claim in idle if (group, claim.queue_key) in self._wanted]
        await self._release(group, {*foreign, *wanted}, nudged_at)

    async def _give_back_committed(self, group: str) -> None:
        foreign = await self._not_shares(group, self._committed.pop(group))
        if foreign:
            nudged_at = self._nudge(foreign)
            await asyncio.sleep(self._times.pull_dropped_again)
            await self._release(group, foreign, nudged_at)

    def _nudge(self, claims: Collection[Claim]) -> float:
        """Answer the held pulls of these claims, and return the time of that by the loop's clock."""
        self._holds.wake(Wake.TIME_OVER, lambda reading: reading in claims)
        return self._database.loop.time()

    async def _release(self, group: str, claims: Collection[Claim], nudged_at: float) -> None:
        idle = [claim for claim in claims if _is_idle(claim, nudged_at)]
        if idle:
            try:
                await self._claims.release(idle)
            except MqdbError as error:
                fields = {"group": group, "reason": str(error)}
                sentence = "could not give back queues of group %(group)s: %(reason)s"
                logger.log(level_of(error), sentence, fields, extra=fields)

    async def _not_shares(self, group: str, claims: Collection[Claim]) -> set[Claim]:
        """The claims that belong to other members' shares; empty if the shares cannot be looked up."""
        if not claims:
            return set()
        try:
            shares = await self._database.run(lambda connection: _shares(connection, group, claims))
        except MqdbError as error:
            fields = {"group": group, "reason": str(error)}
            sentence = "could not look up the shares of members of group %(group)s: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)
            return set()
        return {claim for claim in claims if (claim.client_id, claim.queue_key) not in shares}


def _is_idle(claim: Claim, since: float) -> bool:
    return not (claim.is_lost or claim.pulls or claim.pulled_at >= since)


def _shares(connection: DatabaseConnection, group: str, claims: Collection[Claim]) -> Collection[tuple[str, int]]:
    """The shares of members in the topics of these claims, as RocketMQ's clients calculate them by default.

    In a group that has started to pop, no client has a share.
    """
    settings = groups.find(connection, group)
    if settings is not None and settings.consume_mode is ConsumeMode.POP:
        return ()
    client_ids = members_of(connection, group)
    shares: set[tuple[str, int]] = set()
    for route in find_topics(connection, {claim.queue.topic for claim in claims}).values():
        keys = route.read_queue_keys
        for client_id in {claim.client_id for claim in claims}:
            mine = allocate_averagely(group, client_id, range(len(keys)), client_ids)
            shares.update((client_id, keys[number]) for number in mine)
    return shares
