"""Messages in flight: prolonged while their consumers live, given up.

A push consumer of an SDK leaves the invisible time to the broker. Its messages are invisible for 25 s, and this front
prolongs that for as long as the client is there. So what a client had that was killed comes again within 40 s;
RocketMQ's own proxy takes two minutes. The client keeps the receipt handle that it has got, and the front knows the one
of now.
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

#: The invisible time of a message whose consumer leaves it to the broker.
RENEWED: Final = timedelta(seconds=25)

#: Between two looks, and how much of the time is left when it is prolonged.
_LOOK_SECONDS: Final = 2.0
_LEFT_SECONDS: Final = 13.0

#: Source: ProxyConfig.renewMaxTimeMillis.
_LONGEST_SECONDS: Final = 3 * 3_600.0

#: A connection that is lost is noticed in this time; answers that were written to it before may not have come.
_DOUBTFUL_SECONDS: Final = 15.0


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


class SdkInFlight(Receipts):
    """The messages in flight of one front. Call it from the event loop only."""

    def __init__(self, database: Database, members: SdkMembers, traffic: CallTraffic) -> None:
        super().__init__(database)
        self._traffic = traffic
        self._members = members
        #: By the handles that clients have, until those of now have run out.
        self._held: dict[str, _Held] = {}
        #: The handles in the answer to a receive, by client and attempt id, and until when the receive may be repeated.
        self._attempts: dict[tuple[str, str], tuple[float, Sequence[str]]] = {}
        #: Held while a statement prolongs: what it changes nobody else may change.
        self._prolonging = asyncio.Lock()
        self._failing: set[str] = set()
        database.spawn(repeat(lambda: _LOOK_SECONDS, self._prolong, "prolong messages of SDKs"))

    def keep(self, client_id: str, group: str, handles: Sequence[str], attempt_id: str) -> None:
        """Prolong the time of messages that a client is given now, as the answer to a receive."""
        now = time.monotonic()
        until = now + RENEWED.total_seconds()
        self._held |= {handle: _Held(client_id, group, handle, now, until) for handle in handles}
        if attempt_id:
            self._attempts[client_id, attempt_id] = until, handles

    async def repeat(self, client_id: str, group: str, attempt_id: str) -> None:
        """A client repeats a receive, as the answer was lost: have the messages of the answer come again at once."""
        _, handles = self._attempts.pop((client_id, attempt_id), (0.0, ()))
        lost = [held for handle in handles if (held := self._held.get(handle)) and held.group == group]
        lost = [held for held in lost if held.is_prolonged]
        if lost:
            for held in lost:
                held.is_prolonged = False
            await self._prolonged()
            await self.give_back(group, [held.handle for held in lost])

    def doubt(self, client_id: str, before: float) -> None:
        """A client has lost a stream. Do not prolong messages that it was given shortly before: they may be lost, too.

        `before` is a time of the monotonic clock.
        """
        after = time.monotonic() - _DOUBTFUL_SECONDS
        for held in self._held.values():
            if held.client_id == client_id and after < held.since < before:
                held.is_prolonged = False

    def let_go(self, client_id: str, group: str | None) -> None:
        """Stop prolonging messages of a client in a group, or in any. Their present time still counts."""
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
        """The handle of now, of one that a client has."""
        held = self._held.get(handle)
        return handle if held is None or held.group != group else held.handle

    async def _prolonged(self) -> None:
        """Wait for a statement under way, which would otherwise prolong a message after it was changed."""
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
            except MqdbError as error:  # the affair of this group
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
                if new is None:  # acknowledged meanwhile
                    held.is_prolonged = False
                else:
                    held.handle, held.until = new, until
