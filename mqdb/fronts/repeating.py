"""Repeated work of a front: a failure is logged once, and the next turn runs nevertheless."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mqdb.errors import MqdbError
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)


async def repeat(seconds: Callable[[], float], work: Callable[[], Awaitable[None]], trouble: str) -> None:
    """Do it for ever, with a pause before each turn. `trouble` goes to the log, once for failures in a row."""
    is_failing = False
    while True:
        await asyncio.sleep(seconds())
        try:
            await work()
            is_failing = False
        except Exception as error:
            if not is_failing:
                unexpected = None if isinstance(error, MqdbError) else error
                logger.log(level_of(error), trouble, extra={"reason": str(error)}, exc_info=unexpected)
            is_failing = True
