"""Repeated work of a front: a failure is logged once, and the next turn runs regardless."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqdb.errors import MqdbError
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)


async def repeat(seconds: Callable[[], float], work: Callable[[], Awaitable[None]], duty: str) -> None:
    """Repeat the work forever, with a pause before each turn.

    Consecutive failures are logged once: "could not" and `duty`.
    """
    is_failing = False
    while True:
        await asyncio.sleep(seconds())
        try:
            await work()
            is_failing = False
        except Exception as error:
            if not is_failing:
                unexpected = None if isinstance(error, MqdbError) else error
                fields = {"duty": duty, "reason": str(error)}
                sentence = "could not %(duty)s; will retry: %(reason)s"
                logger.log(level_of(error), sentence, fields, extra=fields, exc_info=unexpected)
            is_failing = True
