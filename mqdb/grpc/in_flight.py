"""Messages in flight: their invisible time is prolonged while their consumers live, and then they are released.

A push consumer of an SDK leaves the invisible time to the broker. Its messages are invisible for 25 s, and this front
prolongs that as long as the client is connected. Messages of a killed client are therefore redelivered within 40 s;
RocketMQ's own proxy takes two minutes. The client keeps its original receipt handle, while the front stores the current
one.
RocketMQ: ReceiptHandleProcessor, AckMessageActivity, ChangeInvisibleDurationActivity.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from mqdb.broker.consumers import pop
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.fronts.database import Database
from mqdb.fronts.receipts import MOST_HANDLES, Receipts
from mqdb.fronts.repeating import repeat
from mqdb.grpc.members import SdkMembers
from mqdb.grpc.traffic import CallTraffic

logger = logging.getLogger(__name__)

#: Invisible time of a message whose consumer leaves the time to the broker.
RENEWED: Final = timedelta(seconds=25)

#: Interval between checks, and the remaining time at which a message is prolonged.
_LOOK_SECONDS: Final = 2.0
_LEFT_SECONDS: Final = 13.0

#: Source: ProxyConfig.renewMaxTimeMillis.
_LONGEST_SECONDS: Final = 3 * 3_600.0

#: A lost connection is detected within this time; answers that were written to it before may not have arrived.
_DOUBTFUL_SECONDS: Final = 15.0


@dataclass(slots=True)
class _Held:
    """A message held by a push consumer."""

    client_id: str
    group: str
    #: The receipt handle that is currently valid.
    handle: str
    since: float
    until: float
    #: Whether the invisible time is prolonged: no longer after an ack or a failure, or after the client has left.
    is_prolonged: bool = True


class SdkInFlight(Receipts):
    """The messages in flight of one front. Call it from the event loop only."""

    def __init__(self, database: Database, members: SdkMembers, traffic: CallTraffic) -> None:
        super().__init__(database)
        self._traffic = traffic
        self._members = members
        #: By the handles that clients have, until the current handles expire.
        self._held: dict[str, _Held] = {}
        #: The handles in the answer to a receive, by client and attempt id, with the time until which the receive may
        #: be repeated.
        self._attempts: dict[tuple[str, str], tuple[float, Sequence[str]]] = {}
        #: Held during a statement that prolongs messages, which nothing else may change at that time.
        self._prolonging = asyncio.Lock()
        self._failing: set[str] = set()
        database.spawn(repeat(lambda: _LOOK_SECONDS, self._prolong, "prolong messages of SDKs"))

    def keep(self, client_id: str, group: str, handles: Sequence[str], attempt_id: str) -> None:
        """Prolong the invisible time of messages that a client receives now, in the answer to a receive."""
        now = time.monotonic()
        until = now + RENEWED.total_seconds()
        self._held |= {handle: _Held(client_id, group, handle, now, until) for handle in handles}
        if attempt_id:
            self._attempts[client_id, attempt_id] = until, handles

    async def repeat(self, client_id: str, group: str, attempt_id: str) -> None:
        """A client repeats a receive whose answer was lost: make the messages of that answer visible immediately."""
        _, handles = self._attempts.pop((client_id, attempt_id), (0.0, ()))
        lost = [held for handle in handles if (held := self._held.get(handle)) and held.group == group]
        lost = [held for held in lost if held.is_prolonged]
        if lost:
            for held in lost:
                held.is_prolonged = False
            await self._prolonged()
            await self.give_back(group, [held.handle for held in lost])

    def doubt(self, client_id: str, before: float) -> None:
        """A client has lost a stream. Stop prolonging messages that it received shortly before: they may be lost, too.

        `before` is a time of the monotonic clock.
        """
        after = time.monotonic() - _DOUBTFUL_SECONDS
        for held in self._held.values():
            if held.client_id == client_id and after < held.since < before:
                held.is_prolonged = False

    def let_go(self, client_id: str, group: str | None) -> None:
        """Stop prolonging messages of a client in a group, or in all groups.

        Their current invisible time still applies.
        """
        for held in self._held.values():
            if held.client_id == client_id and group in (None, held.group):
                held.is_prolonged = False

    async def ack(self, group: str, handle: str) -> bool:
        counts = await super().ack(group, self.current_handle(group, handle))
        if (held := self._held.get(handle)) is not None:
            held.is_prolonged = False
        return counts

    async def change(self, group: str, handle: str, invisible: timedelta) -> str | None:
        held = self._held.get(handle)
        if held is None:
            return await super().change(group, handle, invisible)
        held.is_prolonged = False
        await self._prolonged()
        try:
            return await super().change(group, self.current_handle(group, handle), invisible)
        except MqdbError:
            held.is_prolonged = True
            raise

    async def give_back(self, group: str, handles: Sequence[str]) -> None:
        for handle in handles:
            self._held.pop(handle, None)
        await super().give_back(group, handles)

    def current_handle(self, group: str, handle: str) -> str:
        """The current handle for a handle that a client has."""
        held = self._held.get(handle)
        return handle if held is None or held.group != group else held.handle

    async def _prolonged(self) -> None:
        """Wait for a statement in progress, which could otherwise prolong a message after its change."""
        async with self._prolonging:
            pass

    async def _prolong(self) -> None:
        now = time.monotonic()
        due: defaultdict[str, list[tuple[str, _Held]]] = defaultdict(list)
        for original, held in list(self._held.items()):
            if held.until < now:
                del self._held[original]
            elif now - held.since > _LONGEST_SECONDS:
                held.is_prolonged = False
            elif held.until - now < _LEFT_SECONDS and self._members.is_alive(held.client_id):
                due[held.group].append((original, held))
        self._traffic.held = len(self._held)
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if attempt[0] > now}
        for group, given in due.items():
            try:
                for start in range(0, len(given), MOST_HANDLES):
                    await self._prolong_some(group, given[start : start + MOST_HANDLES])
                self._failing.discard(group)
            except BrokerUnavailable:
                raise
            except MqdbError as error:  # an error in one group does not affect the others
                if group not in self._failing:
                    fields = {"group": group, "reason": str(error)}
                    sentence = "could not prolong messages of group %(group)s; will retry: %(reason)s"
                    logger.warning(sentence, fields, extra=fields)
                self._failing.add(group)

    async def _prolong_some(self, group: str, given: Sequence[tuple[str, _Held]]) -> None:
        async with self._prolonging:
            given = [(original, held) for original, held in given if held.is_prolonged]
            if not given:
                return
            until = time.monotonic() + RENEWED.total_seconds()
            handles = [held.handle for _, held in given]
            change = partial(pop.change_invisible, group=group, receipt_handles=handles, invisible=RENEWED)
            for (_, held), new in zip(given, await self._database.run(change), strict=True):
                if new is None:  # acknowledged in between
                    held.is_prolonged = False
                else:
                    held.handle, held.until = new, until
