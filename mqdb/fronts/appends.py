"""Appends: group append writes records of clients to the log, and reports their outcomes to the event loop.

All sends that arrive from any connection during a statement are combined in the next statement. No task or thread is
created for a single send.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from mqdb.common.message import SendStatus
from mqdb.fronts.database import Database
from mqdb.store.log.commit_log import LogPlace, Record
from mqdb_client.producer.append import LATENESS_SECONDS, BrokerLink, Unit, Waking


class FrontUnit(Unit):
    """The messages of one request, whose records are created when the request arrives."""

    __slots__ = ("places", "status")

    def __init__(self, topic: str, deadline: float, timeout_seconds: float, records: Sequence[Record]) -> None:
        super().__init__(topic, deadline, timeout_seconds)
        self.records = records
        self.places: Sequence[LogPlace] = ()
        self.status = SendStatus.SEND_OK

    def make_records(self) -> None:
        """Do nothing: the records already exist."""

    def succeed(self, places: Sequence[LogPlace], status: SendStatus) -> None:
        self.places = places
        self.status = status


UnitT = TypeVar("UnitT", bound=FrontUnit)


class Appends(Generic[UnitT]):
    """The appends of one front. Use it in the front's event loop only, except for `close`."""

    def __init__(self, database: Database, conclude: Callable[[UnitT], None]) -> None:
        """The event loop calls `conclude` with each unit that has ended."""
        self._database = database
        self._conclude = conclude
        self.link = BrokerLink(database.instance, None, Waking())
        self.link.open()
        self._ended: deque[UnitT] = deque()
        self._is_called = False
        self._under_way = 0
        self._is_watching = False

    def close(self) -> None:
        """Wait for appends in progress, and disconnect. It must not be called in the event loop."""
        self.link.close()

    def hand_in(self, unit: UnitT) -> None:
        """Append the records of a unit."""
        self._under_way += 1
        if not self._is_watching:
            self._is_watching = True
            self._database.loop.call_later(LATENESS_SECONDS, self._end_late)
        self.link.appends.hand_in(unit, partial(self._tell_ended, unit))

    def _tell_ended(self, unit: UnitT) -> None:
        """Note the end of a unit; called in any thread."""
        self._ended.append(unit)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop is closed, and so are all connections
                self._database.loop.call_soon_threadsafe(self._conclude_all)

    def _conclude_all(self) -> None:
        self._is_called = False  # reset first: units that end later schedule another call
        while self._ended:
            self._under_way -= 1
            self._conclude(self._ended.popleft())

    def _end_late(self) -> None:
        self.link.appends.end_late()
        self._is_watching = self._under_way > 0
        if self._is_watching:
            self._database.loop.call_later(LATENESS_SECONDS, self._end_late)
