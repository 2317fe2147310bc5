"""Consuming: creates the parts of a front that serve consumers, and connects their events."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from mqdb.fronts.database import Database
from mqdb.fronts.known_groups import KnownGroups
from mqdb.remoting.consuming.assignments import Assignments
from mqdb.remoting.consuming.claims import Claims
from mqdb.remoting.consuming.hand_over import HandOver, HandOverTimes
from mqdb.remoting.consuming.holds import Holds, Wake
from mqdb.remoting.consuming.locks import Locks
from mqdb.remoting.consuming.offsets import ClientOffsets
from mqdb.remoting.consuming.places import Places
from mqdb.remoting.consuming.pops import Pops
from mqdb.remoting.consuming.pulls import Pulls, PullTimes
from mqdb.remoting.consuming.readings import Claim
from mqdb.remoting.session.client import Client, Consumer
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.session.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ConsumingTimes:
    """The intervals and timeouts of consuming, in seconds."""

    #: Interval between writes of committed offsets. RocketMQ's ClientConfig.persistConsumerOffsetInterval is 5 s.
    commit: float = 1.0
    #: Source: RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME.
    lock_expiry: timedelta = timedelta(seconds=60)
    pulls: PullTimes = field(default_factory=PullTimes)
    hand_over: HandOverTimes = field(default_factory=HandOverTimes)


CONSUMING_TIMES: Final = ConsumingTimes()


class Consuming:
    """The members, pulls, pops, offsets and locks of one front. Create it and close it in the front's event loop.

    It is the listener of its parts, and is notified of changes in groups and of arrivals in the database.
    """

    def __init__(self, database: Database, address: tuple[str, int], traffic: Traffic, times: ConsumingTimes) -> None:
        places, holds, groups = Places(database), Holds(database.loop), KnownGroups(database)
        self.members = FrontMembers(database, self)
        claims = Claims(database, self.members, self, times.commit)
        self.offsets = ClientOffsets(database, self.members, groups, places, claims, self, times.commit)
        self.pulls = Pulls(
            database, self.members, groups, places, claims, holds, self.offsets, address, traffic, times.pulls
        )
        self.pops = Pops(database, self.members, groups, places, address, traffic)
        self.assignments = Assignments(database, places)
        self.locks = Locks(database, self.members, places, claims, times.lock_expiry)
        self._hand_over = HandOver(database, claims, holds, times.hand_over)
        self._claims, self._holds = claims, holds
        self._handles = [
            database.instance.on_group_change(database.in_loop(self._changed)),
            database.instance.on_arrival(database.in_loop(holds.arrived)),
        ]

    async def close(self) -> None:
        """Stop listening to events, and write the committed offsets. Call it after closing the connections."""
        for handle in self._handles:
            handle.cancel()
        self.pops.close()
        self.members.close()
        await self._claims.close()
        await self.offsets.close()

    # -- what happens, and what is done then --------------------------------------------------

    async def entered(self, consumer: Consumer) -> None:
        """The broker has registered a consumer: its group gets a starting point in new topics."""
        await self.offsets.begin(consumer)

    async def left(self, client: Client, group: str) -> None:
        """A client leaves a group: its queues are released."""
        await self._claims.left(client, group)

    def _changed(self, group: str | None) -> None:
        """The members or free queues of a group may have changed; None, after a lost connection, means all."""
        self.members.changed(group)  # clients rebalance
        self._claims.changed(group)  # waiting pulls try again to get their queues, and lost claims are found
        self._hand_over.changed(group)  # queues that clients have dropped are released

    def wanted(self, group: str, queue_key: int, client_id: str) -> None:
        """A client requested a queue that is not free.

        If the owner is a client of this front that no longer pulls, the queue is released.
        """
        self._hand_over.wanted(group, queue_key, client_id)

    def committed(self, claim: Claim) -> None:
        """A client reported an offset by other means than a pull: it may have dropped the queue."""
        self._hand_over.committed(claim)

    def lost(self, claim: Claim) -> None:
        """A client has lost a queue: its held pulls are answered."""
        self._holds.wake(Wake.LOST, lambda reading: reading is claim)

    def disconnected(self, connection: Connection) -> None:
        """A connection was closed: its client may come back, but its pulls, pops and readings are discarded."""
        self.members.lost(connection)
        self.pulls.lost(connection)
        self.pops.lost(connection)
        self.offsets.lost(connection)
