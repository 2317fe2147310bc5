"""Consuming: what a front needs for consumers, put together."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from mqdb.remoting.claims import COMMIT_SECONDS, Claims
from mqdb.remoting.connection import Connection
from mqdb.remoting.database import Database
from mqdb.remoting.hand_over import HandOver, HandOverTimes
from mqdb.remoting.locks import LOCK_EXPIRY, Locks
from mqdb.remoting.members import Members
from mqdb.remoting.offsets import Offsets
from mqdb.remoting.places import Places
from mqdb.remoting.pulls import Pulls, PullTimes
from mqdb.remoting.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ConsumingTimes:
    """The paces of consuming, in seconds."""

    #: Between writes of what clients have committed.
    commit: float = COMMIT_SECONDS
    lock_expiry: timedelta = LOCK_EXPIRY
    pulls: PullTimes = field(default_factory=PullTimes)
    hand_over: HandOverTimes = field(default_factory=HandOverTimes)


CONSUMING_TIMES: Final = ConsumingTimes()


class Consuming:
    """Pulls, offsets and locks of one front. Made and closed in its loop."""

    def __init__(
        self,
        database: Database,
        members: Members,
        address: tuple[str, int],
        traffic: Traffic,
        times: ConsumingTimes = CONSUMING_TIMES,
    ) -> None:
        places = Places(database)
        self._claims = Claims(database, members, times.commit)
        self.offsets = Offsets(database, members, places, self._claims, times.commit)
        self.pulls = Pulls(database, members, places, self._claims, self.offsets, address, traffic, times.pulls)
        self.locks = Locks(database, members, places, self._claims, times.lock_expiry)
        self._hand_over = HandOver(database, members, self._claims, self.offsets, self.pulls.nudge, times.hand_over)

    def lost(self, connection: Connection) -> None:
        """A connection is closed."""
        self.pulls.lost(connection)
        self.offsets.lost(connection)

    async def close(self) -> None:
        """Write what has been committed. After the connections are closed."""
        self.pulls.close()
        await self._claims.close()
        await self.offsets.close()
