"""Messages in flight: acknowledged together, prolonged while their consumers live, given up.

A push consumer of an SDK leaves the invisible time to the broker. Its messages are invisible for 25 s, and this front
prolongs that for as long as the client is there. So what a client had that was killed comes again within 40 s;
RocketMQ's own proxy takes two minutes. The client keeps the receipt handle that it has got, and the front knows the one
of now.
RocketMQ: ReceiptHandleProcessor, AckMessageActivity, ChangeInvisibleDurationActivity.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from mqdb.broker.consumers import pop
from mqdb.common.receipt_handle import is_handle
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.fronts.database import Database
from mqdb.fronts.repeating import repeat
from mqdb.grpc.members import SdkMembers
from mqdb.grpc.traffic import CallTraffic
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: How long a message is invisible whose consumer leaves that to the broker.
RENEWED: Final = timedelta(seconds=25)

#: Between two looks, and how much of the time is left when it is prolonged.
_LOOK_SECONDS: Final = 2.0
_LEFT_SECONDS: Final = 13.0

#: Source: ProxyConfig.renewMaxTimeMillis.
_LONGEST_SECONDS: Final = 3 * 3_600.0

#: Receipt handles in one statement.
_MOST_AT_ONCE: Final = 1_000


@dataclass(slots=True)
class _Held:
    """A message that a push consumer has."""

    client_id: str
    group: str
    #: The handle that counts now.
    handle: str
    since: float
    until: float
    #: Whether its time is prolonged; not once it is acknowledged, failed, or its client has left.
    is_prolonged: bool = True


class SdkInFlight:
    """The messages in flight of one front. Call it from the event loop only."""

    def __init__(self, database: Database, members: SdkMembers, traffic: CallTraffic) -> None:
        self._traffic = traffic
        self._database = database
        self._members = members
        #: By the handles that clients have, until those of now have run out.
        self._held: dict[str, _Held] = {}
        self._acks: dict[str, list[tuple[str, asyncio.Future[bool]]]] = {}
        #: Held while a statement prolongs: what it changes nobody else may change.
        self._prolonging = asyncio.Lock()
        self._failing: set[str] = set()
        database.spawn(repeat(lambda: _LOOK_SECONDS, self._prolong, "cannot prolong messages"))

    def keep(self, client_id: str, group: str, handles: Iterable[str]) -> None:
        """Prolong the time of messages that a client was given just now."""
        now = self._database.loop.time()
        until = now + RENEWED.total_seconds()
        self._held |= {handle: _Held(client_id, group, handle, now, until) for handle in handles}

    def let_go(self, client_id: str, group: str | None) -> None:
        """Prolong nothing more for a client in a group, or in any. What it has still counts for its time."""
        for held in self._held.values():
            if held.client_id == client_id and group in (None, held.group):
                held.is_prolonged = False

    async def ack(self, group: str, handle: str) -> bool:
        """Acknowledge a message; False if the handle does not count. Those of one group go together.

        Raises what `mqdb.broker.consumers.pop.ack` raises.
        """
        if not is_handle(handle):  # it would fail the statement, and the others that go with it
            return False
        future: asyncio.Future[bool] = self._database.loop.create_future()
        given = (self.current_handle(group, handle), future)
        if group in self._acks:
            self._acks[group].append(given)
        else:
            self._acks[group] = [given]
            self._database.spawn(self._ack_all(group))
        counts = await future
        if (held := self._held.get(handle)) is not None:
            held.is_prolonged = False
        return counts

    async def change(self, group: str, handle: str, invisible: timedelta) -> str | None:
        """Have a message come again after this time; its new handle, None if the handle does not count.

        Raises what `mqdb.broker.consumers.pop.change_invisible` raises.
        """
        if not is_handle(handle):
            return None
        held = self._held.get(handle)
        if held is not None:
            held.is_prolonged = False
            async with self._prolonging:  # else what is under way would come after this
                pass
        counting = self.current_handle(group, handle)
        change = partial(pop.change_invisible, group=group, receipt_handles=[counting], invisible=invisible)
        try:
            [new] = await self._database.run(change)
        except MqdbError:
            if held is not None:
                held.is_prolonged = True
            raise
        return new

    async def give_back(self, group: str, handles: Sequence[str]) -> None:
        """Have messages come again at once that nobody has got."""
        for handle in handles:
            self._held.pop(handle, None)
        back = partial(
            pop.change_invisible, group=group, receipt_handles=handles, invisible=timedelta(0), is_unread=True
        )
        try:
            await self._database.run(back)
        except MqdbError as error:
            fields = {"group": group, "count": len(handles), "reason": str(error)}
            logger.log(level_of(error), "could not give back undelivered messages", extra=fields)

    def current_handle(self, group: str, handle: str) -> str:
        """The handle of now, of one that a client has."""
        held = self._held.get(handle)
        return handle if held is None or held.group != group else held.handle

    async def _ack_all(self, group: str) -> None:
        """Until no more have come while the statement was under way."""
        while given := self._acks[group][:_MOST_AT_ONCE]:
            del self._acks[group][: len(given)]
            acknowledge = partial(pop.ack, group=group, receipt_handles=[handle for handle, _ in given])
            try:
                answers = await self._database.run(acknowledge)
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                for _, future in given:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(given, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        del self._acks[group]

    async def _prolong(self) -> None:
        now = self._database.loop.time()
        due: defaultdict[str, list[tuple[str, _Held]]] = defaultdict(list)
        for original, held in list(self._held.items()):
            if held.until < now:
                del self._held[original]
            elif now - held.since > _LONGEST_SECONDS:
                held.is_prolonged = False
            elif held.until - now < _LEFT_SECONDS and self._members.is_alive(held.client_id):
                due[held.group].append((original, held))
        self._traffic.held = len(self._held)
        for group, given in due.items():
            try:
                for start in range(0, len(given), _MOST_AT_ONCE):
                    await self._prolong_some(group, given[start : start + _MOST_AT_ONCE])
                self._failing.discard(group)
            except BrokerUnavailable:
                raise
            except MqdbError as error:  # the affair of this group
                if group not in self._failing:
                    fields = {"group": group, "reason": str(error)}
                    logger.warning("cannot prolong messages of a group", extra=fields)
                self._failing.add(group)

    async def _prolong_some(self, group: str, given: Sequence[tuple[str, _Held]]) -> None:
        async with self._prolonging:
            given = [(original, held) for original, held in given if held.is_prolonged]
            if not given:
                return
            until = self._database.loop.time() + RENEWED.total_seconds()
            handles = [held.handle for _, held in given]
            change = partial(pop.change_invisible, group=group, receipt_handles=handles, invisible=RENEWED)
            for (_, held), new in zip(given, await self._database.run(change), strict=True):
                if new is None:  # acknowledged meanwhile
                    held.is_prolonged = False
                else:
                    held.handle, held.until = new, until
