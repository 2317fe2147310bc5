"""Reach: whether the brokers of a dashboard answer, for the probes of `mqdb web`."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import anyio

from mqdb.dashboard.brokers import Brokers
from mqdb.errors import MqdbError
from mqdb.web.health import ANSWER_SECONDS
from mqdb.web.report import PASSED, Report

logger = logging.getLogger(__name__)

#: The brokers are asked at most once in this time, however many probes come.
_KNOWN_SECONDS: Final = 5.0


class Reach:
    """Asks the brokers on behalf of probes. Only the thread of the web server calls it."""

    def __init__(self, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._brokers = brokers
        self._clock = clock
        self._asked_at = 0.0
        self._asking: asyncio.Task[Report] | None = None

    async def report(self) -> Report:
        """One check for each broker. While the brokers have not answered, they are not asked again."""
        now = self._clock()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= _KNOWN_SECONDS):
            self._asking, self._asked_at = asyncio.create_task(self._ask()), now
        done, _ = await asyncio.wait({self._asking}, timeout=ANSWER_SECONDS)
        return self._asking.result() if done else Report({"brokers": f"have not answered for {ANSWER_SECONDS:.0f} s"})

    async def _ask(self) -> Report:
        return await anyio.to_thread.run_sync(self._look)

    def _look(self) -> Report:
        try:
            answers = self._brokers.admin().on_each(lambda broker: broker.retention.log())
        except MqdbError as error:
            logger.warning("no broker can be asked", extra={"error": str(error)})
            return Report({"brokers": "cannot be found, the log says why"})
        for name, fault in answers.failures.items():
            logger.warning("a broker does not answer", extra={"broker": name, "error": str(fault)})
        failing = dict.fromkeys(answers.failures, "cannot be used, the log says why")
        return Report(dict.fromkeys(answers.results, PASSED) | failing)
