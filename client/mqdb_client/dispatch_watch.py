"""The dispatch watch, which makes sure that messages get their offsets even without `mqdb serve`.

A process with consumers checks dispatch when no arrival was announced for a while. The process queries whether a leader
attends to dispatch, and dispatches messages itself as long as there is no leader.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.dispatch import DispatchOutcome, dispatch, stay_awake

logger = logging.getLogger(__name__)

#: After this time without an arrival, the client asks whether the dispatcher is alive.
PATIENCE_SECONDS: Final = 0.2

#: While nothing arrives it asks again after twice the time, up to this limit.
LONGEST_PATIENCE_SECONDS: Final = 1.0

#: The client asks occasionally despite arrivals, because any role can forge an arrival.
TRUST_SECONDS: Final = 5.0

#: After this time without a leader, no process is about to lead: a successor is promised within 5 s.
ALONE_SECONDS: Final = 10.0

_BUSY_SECONDS: Final = 0.002
# `mqdb serve` goes to 10 ms. There may be many processes like this, so each does half as much.
_IDLE_SECONDS: Final = 0.02

_BUSY = frozenset({DispatchOutcome.DISPATCHED, DispatchOutcome.ADOPTED})


class DispatchWatch:
    """Watches dispatch for one thread, which calls `tend` when a check is due, and reports arrivals.

    `ask_attended` queries the broker through a connection of this thread, and `connect` makes a connection for
    dispatching. `broker_name` is for the log.
    """

    def __init__(
        self,
        ask_attended: Callable[[], bool],
        connect: Callable[[], AbstractContextManager[Connection]],
        broker_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask_attended = ask_attended
        self._connect = connect
        self._fields = {"broker": broker_name}
        self._clock = clock
        self._is_attended = True
        self._alone_since = math.inf
        self._is_told = False
        self._asked_at = self._clock()
        self._patience = PATIENCE_SECONDS
        self._ask_at = self._asked_at + self._patience
        self._pause = _BUSY_SECONDS
        self._has_dispatched = False

    @property
    def is_attended(self) -> bool:
        """Whether a leader attends to dispatch, according to the last answer of the broker.

        True before the first answer.
        """
        return self._is_attended

    def arrival_heard(self) -> None:
        """Note that messages are being dispatched. This has no effect if this process dispatches them."""
        if self._is_attended:
            self._patience = PATIENCE_SECONDS
            self._ask_at = min(self._clock() + PATIENCE_SECONDS, self._asked_at + TRUST_SECONDS)

    def tend(self) -> float:
        """Look for a leader or dispatch one batch, whichever is due; returns the seconds until the next call."""
        now = self._clock()
        if now < self._ask_at and self._is_attended:
            return self._ask_at - now
        if now >= self._ask_at:
            # The shortest time first, because the query may fail.
            self._asked_at, self._ask_at = now, now + PATIENCE_SECONDS
            self._learn(self._ask_attended(), now)
            longer = min(self._patience * 2, LONGEST_PATIENCE_SECONDS)
            self._patience = longer if self._is_attended else PATIENCE_SECONDS
            self._ask_at = now + self._patience
        if self._is_attended:
            return self._patience
        with self._connect() as connection:
            if not self._has_dispatched:
                stay_awake(connection)  # the dispatcher may have died while idle
                self._has_dispatched = True
            outcome = dispatch(connection).outcome
        self._pause = _BUSY_SECONDS if outcome in _BUSY else min(self._pause * 2, _IDLE_SECONDS)
        return self._pause

    def _learn(self, attended: bool, now: float) -> None:
        if attended:
            if self._is_told:
                logger.info("a broker process attends to dispatch again", extra=self._fields)
            self._is_told = self._has_dispatched = False
        elif self._is_attended:
            self._alone_since = now
        elif not self._is_told and now - self._alone_since >= ALONE_SECONDS:
            sentence = (
                "no `mqdb serve` is alive for broker %(broker)s: this process dispatches; nothing drops old messages"
            )
            logger.warning(sentence, self._fields, extra=self._fields)
            self._is_told = True
        self._is_attended = attended
