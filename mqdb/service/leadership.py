"""Leadership: of all processes that could run the services of a broker, exactly one runs them.

           no leader                             connection or lease lost, or stopped
    follower ─────────────────────────▶ leader ─────────────────────────────────────────▶ follower

Every follower checks ten times a second whether the leader's backend exists. The backend ends with the process, the
server, or the connection between them, and the first candidate that notices this becomes the leader. The leader checks
once a second whether it still leads, and immediately when one of its services has failed. A hanging process keeps its
backend, so the leader also renews a promise. A candidate that has seen the same promise for the duration of a lease, by
its own monotonic clock, ends this backend and becomes the leader: changes of the server's clock do not affect
leadership.

A leader that hung and wakes up must not act on old state. Its services call `is_leader` before each round, which reads
a clock and not the database: a lease that was not renewed in time is over. A round that begins between the check and
the end of the lease does no harm: rounds of the old leader and the new one exclude each other by locks and keys in the
database, like those of clients that dispatch themselves.
"""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from mqdb.errors import IllegalState
from mqdb.service.run import Run
from mqdb.service.service import Context, LoopService
from mqdb.store import leader

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeadershipConfig:
    """The configuration of leadership.

    A killed leader is replaced within `poll`, a hung leader within `lease` plus `poll`.
    """

    poll: timedelta = timedelta(milliseconds=100)
    """The time between two checks of a follower."""
    look: timedelta = timedelta(seconds=1)
    """The time between two checks of the leader, within which it notices that it no longer leads."""
    renewal: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=3)
    service_set: str = "all"


class LeadershipState(StrEnum):
    """The state of a process after a round."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"


class _Term:
    """The time from an election or a renewal to the next renewal."""

    def __init__(self, epoch: int, config: LeadershipConfig, now: float) -> None:
        self.epoch = epoch
        self.lease_ends = now + config.lease.total_seconds()
        self.renew_at = now + config.renewal.total_seconds()


class Leadership(LoopService[LeadershipState]):
    """Acquires leadership, keeps it, and reports when it is won and lost.

    `on_elected` and `on_lost` are called alternately, in its thread; leadership is not renewed while they run.
    """

    name = "leadership"
    longest_backoff = timedelta(milliseconds=500)
    tells_of_outages = True

    def __init__(
        self,
        context: Context,
        config: LeadershipConfig = LeadershipConfig(),
        *,
        on_elected: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(context)
        self._config = config
        # Resigning lets another process lead immediately; otherwise that process has to wait.
        self.grace = config.lease
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._term: _Term | None = None
        self._incumbent: leader.Incumbent | None = None
        self._seen_at = 0.0
        self.holder = f"{socket.gethostname()}:{os.getpid()}"

    def is_leader(self) -> bool:
        """Whether this process may act as the leader now. Only reads the clock."""
        term = self._term
        return term is not None and self._context.clock.monotonic() < term.lease_ends

    def run_once(self, connection: Connection) -> LeadershipState:
        """Try to become the leader, or renew the lease. Raises IllegalState if another process has the lease."""
        term = self._term
        if term is None:
            return self._challenge(connection)
        config = self._config
        now = self._context.clock.monotonic()
        is_due = now >= term.renew_at
        if is_due:
            is_mine = leader.renew(connection, config.service_set, term.epoch, config.lease)
        else:
            is_mine = leader.is_held(connection, config.service_set, term.epoch)
        if not is_mine:
            raise IllegalState("the lease of the leader", "in other hands")
        if is_due:
            # From the time of the request, not of the answer.
            self._term = _Term(term.epoch, config, now)
        return LeadershipState.LEADER

    def _challenge(self, connection: Connection) -> LeadershipState:
        config = self._config
        now = self._context.clock.monotonic()
        incumbent = leader.find(connection, config.service_set)
        if incumbent is not None and incumbent.is_connected:
            if not self._is_silent(incumbent, now):
                return LeadershipState.FOLLOWER
            if leader.end_backend(connection, config.service_set, incumbent):
                hung = {"service_set": config.service_set, "epoch": incumbent.epoch}
                logger.warning("ended the connection of the hung leader of epoch %(epoch)s", hung, extra=hung)
        epoch = leader.elect(connection, config.service_set, self.holder, config.lease, incumbent)
        if epoch is None:
            return LeadershipState.FOLLOWER
        self._term = _Term(epoch, config, now)
        logger.info("elected leader", extra={"holder": self.holder, "epoch": epoch})
        self._on_elected()
        return LeadershipState.LEADER

    def _is_silent(self, incumbent: leader.Incumbent, now: float) -> bool:
        """Whether the leader has not renewed its promise for the duration of a lease, by this process's clock."""
        if self._incumbent != incumbent:
            self._incumbent, self._seen_at = incumbent, now
        return now - self._seen_at > self._config.lease.total_seconds()

    def prepare(self, connection: Connection) -> None:
        # A disk that takes seconds to flush must not cost the lease. After a crash all connections are gone anyway.
        connection.execute(select(func.set_config("synchronous_commit", "off", False)))

    def pause_after(self, counts: LeadershipState) -> timedelta:
        return self._config.look if counts is LeadershipState.LEADER else self._config.poll

    def _tell_failure(self, fields: dict[str, object], trace: Exception | None) -> None:
        if self._term is None:
            super()._tell_failure(fields, trace)
        else:
            lost = {"holder": self.holder, "epoch": self._term.epoch, "reason": fields["reason"]}
            sentence = "lost leadership of epoch %(epoch)s: %(reason)s"
            logger.warning(sentence, lost, exc_info=trace, extra=lost)

    def _tell_success(self, run: Run) -> None:
        if self._term is None:  # otherwise the election was logged
            super()._tell_success(run)

    def _failed(self, error: Exception) -> None:
        if self._term is not None:
            self._step_down()

    def _leave(self, run: Run) -> None:
        if self._term is None:
            return
        epoch = self._term.epoch
        self._step_down()
        if run.connection is not None:
            with suppress(DBAPIError):
                leader.resign(run.connection, self._config.service_set, epoch)
        logger.info("resigned leadership", extra={"holder": self.holder, "epoch": epoch})

    def _step_down(self) -> None:
        self._term = None
        self._on_lost()
