"""Appends: records of clients go to the log by group append, and their ends come back to the loop.

The sends of all connections that come while a statement is under way go together in the next one. Neither a task nor a
thread is made for each.
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
    """Messages of one request, whose records are made when the request comes."""

    __slots__ = ("places", "status")

    def __init__(self, topic: str, deadline: float, timeout_seconds: float, records: Sequence[Record]) -> None:
        super().__init__(topic, deadline, timeout_seconds)
        self.records = records
        self.places: Sequence[LogPlace] = ()
        self.status = SendStatus.SEND_OK

    def make_records(self) -> None:
        """Make the records."""

    def succeed(self, places: Sequence[LogPlace], status: SendStatus) -> None:
        self.places = places
        self.status = status


UnitT = TypeVar("UnitT", bound=FrontUnit)


class Appends(Generic[UnitT]):
    """The appends of one front. Use it in its loop only, except for `close`."""

    def __init__(self, database: Database, conclude: Callable[[UnitT], None]) -> None:
        """`conclude` is called in the loop with each unit that has ended."""
        self._database = database
        self._conclude = conclude
        self.link = BrokerLink(database.instance, None, Waking())
        self.link.open()
        self._ended: deque[UnitT] = deque()
        self._is_called = False
        self._under_way = 0
        self._is_watching = False

    def close(self) -> None:
        """Wait for appends under way, and disconnect. Do not call it in the loop."""
        self.link.close()

    def hand_in(self, unit: UnitT) -> None:
        """Append the records of a unit."""
        self._under_way += 1
        if not self._is_watching:
            self._is_watching = True
            self._database.loop.call_later(LATENESS_SECONDS, self._end_late)
        self.link.appends.hand_in(unit, partial(self._tell_ended, unit))

    def _tell_ended(self, unit: UnitT) -> None:
        """In any thread."""
        self._ended.append(unit)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the loop is closed, and so are all connections
                self._database.loop.call_soon_threadsafe(self._conclude_all)

    def _conclude_all(self) -> None:
        self._is_called = False  # before it looks: whoever comes later calls again
        while self._ended:
            self._under_way -= 1
            self._conclude(self._ended.popleft())

    def _end_late(self) -> None:
        self.link.appends.end_late()
        self._is_watching = self._under_way > 0
        if self._is_watching:
            self._database.loop.call_later(LATENESS_SECONDS, self._end_late)
