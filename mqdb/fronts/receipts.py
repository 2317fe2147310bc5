"""Receipts: messages in flight are acknowledged together, come again after another time, or are given back.

A client needs only its handle: this module keeps no state of deliveries.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from mqdb.broker.consumers import pop
from mqdb.common.receipt_handle import is_handle
from mqdb.errors import MqdbError
from mqdb.fronts.database import Database
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Receipt handles in one statement.
MOST_HANDLES: Final = 1_000


class Receipts:
    """The receipt handles that come to one front. Call it from the event loop only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._acks: dict[str, list[tuple[str, asyncio.Future[bool]]]] = {}

    async def ack(self, group: str, handle: str) -> bool:
        """Acknowledge a message; False if the handle does not count. Those of one group go together.

        Raises what `mqdb.broker.consumers.pop.ack` raises.
        """
        if not is_handle(handle):  # it would fail the statement, and the others that go with it
            return False
        future: asyncio.Future[bool] = self._database.loop.create_future()
        if group in self._acks:
            self._acks[group].append((handle, future))
        else:
            self._acks[group] = [(handle, future)]
            self._database.spawn(self._ack_all(group))
        return await future

    async def change(self, group: str, handle: str, invisible: timedelta) -> str | None:
        """Have a message come again after this time; its new handle, None if the handle does not count.

        Raises what `mqdb.broker.consumers.pop.change_invisible` raises.
        """
        if not is_handle(handle):
            return None
        change = partial(pop.change_invisible, group=group, receipt_handles=[handle], invisible=invisible)
        [new] = await self._database.run(change)
        return new

    async def give_back(self, group: str, handles: Sequence[str]) -> None:
        """Make messages visible again at once that no client has received."""
        back = partial(
            pop.change_invisible, group=group, receipt_handles=handles, invisible=timedelta(0), is_unread=True
        )
        try:
            await self._database.run(back)
        except MqdbError as error:
            fields = {"group": group, "count": len(handles), "reason": str(error)}
            sentence = "could not give back %(count)s undelivered messages of group %(group)s: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)

    async def _ack_all(self, group: str) -> None:
        """Acknowledge in batches until no handles are left, also those that arrive while a statement is under way."""
        while given := self._acks[group][:MOST_HANDLES]:
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
