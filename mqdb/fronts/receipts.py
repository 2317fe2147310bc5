"""Receipts: messages in flight are acknowledged in batches, become visible after another time, or are given back.

A client needs only its handle, because this module keeps no state of deliveries.
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

#: Maximum number of receipt handles in one statement.
MOST_HANDLES: Final = 1_000


class Receipts:
    """The receipt handles that one front receives. Call it from the event loop only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._acks: dict[str, list[tuple[str, asyncio.Future[bool]]]] = {}

    async def ack(self, group: str, handle: str) -> bool:
        """Acknowledge a message; returns False if the handle is invalid.

        Acknowledgements of the same group are combined.

        Raises the errors of `mqdb.broker.consumers.pop.ack`.
        """
        if not is_handle(handle):  # it would fail the statement, together with the other handles
            return False
        future: asyncio.Future[bool] = self._database.loop.create_future()
        if group in self._acks:
            self._acks[group].append((handle, future))
        else:
            self._acks[group] = [(handle, future)]
            self._database.spawn(self._ack_all(group))
        return await future

    async def change(self, group: str, handle: str, invisible: timedelta) -> str | None:
        """Make a message visible after this time; returns its new handle, or None if the handle is invalid.

        Raises the errors of `mqdb.broker.consumers.pop.change_invisible`.
        """
        if not is_handle(handle):
            return None
        change = partial(pop.change_invisible, group=group, receipt_handles=[handle], invisible=invisible)
        [new] = await self._database.run(change)
        return new

    async def give_back(self, group: str, handles: Sequence[str]) -> None:
        """Make messages that no client has received visible again immediately."""
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
        """Acknowledge in batches until no handles are left, including those that arrive during a statement."""
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
