"""Health: whether this process is alive, and whether it is ready. Neither asks the database.

/healthz tells a supervisor whether to restart the process: it passes if each loop still makes rounds. A round that
waits for the database counts, regardless of its duration, because a restart would not bring the database back. /readyz
tells whether the broker is served. It uses the last result of leadership, which asks the database all the time.
"""

from collections.abc import Callable
from typing import Final

from mqdb.errors import SchemaMismatch, ServerIsStandby
from mqdb.service.leadership import LeadershipState
from mqdb.web.loop_rounds import Rounds
from mqdb.web.probe_report import PASSED, Report

#: A loop that has made no round for so long is stuck. The longest pause of a service is 10 s.
STUCK_SECONDS: Final = 30.0

#: So soon the database has to answer.
ANSWER_SECONDS: Final = 2.0


class Health:
    """Judges a process by the rounds of its loops. Any thread may ask."""

    def __init__(self, rounds: Rounds, is_leader: Callable[[], bool]) -> None:
        self._rounds = rounds
        self._is_leader = is_leader
        self._is_stopping = False
        #: Whether what runs beside the loops is still to start. The process is alive all that time.
        self.is_starting = False
        #: Tells whether what runs beside the loops is alive, if anything does.
        self.beside: Callable[[], Report] | None = None

    def begin(self) -> None:
        """The process serves from now on."""
        self._rounds.leadership.wake()
        self._is_stopping = False

    def end(self) -> None:
        """Report the process as not ready, because it is about to stop."""
        self._is_stopping = True

    def liveness(self) -> Report:
        """Whether each loop that should run has made a round lately, and what runs beside them is alive.

        A process that stops is alive.
        """
        if self._is_stopping:
            return Report({})
        stuck = f"has made no round for {STUCK_SECONDS:.0f} s"
        loops = self._rounds.running()
        checks = {loop.name: stuck if loop.idle_seconds() > STUCK_SECONDS else PASSED for loop in loops}
        return Report(checks | self._beside())

    def readiness(self) -> Report:
        """Whether the database answers, its schema is ours, and this process leads or stands by for one that does.

        The parts beside the loops have to be started and alive.
        """
        database, schema = self._database(), self._schema()
        # Nobody knows while the database does not answer.
        is_known = database == schema == PASSED
        leadership = "does not lead, and sees no leader" if is_known and not self._has_standing() else PASSED
        checks = {"database": database, "schema": schema, "leadership": leadership}
        if self._is_stopping or self.is_starting:
            return Report(checks | {"process": "is stopping" if self._is_stopping else "is starting"})
        return Report(checks | self._beside())

    def database_answers(self) -> bool:
        """Whether the last question was answered, and the present one has not waited too long."""
        return self._database() == PASSED

    def leads_to_standby(self) -> bool:
        """Whether the last attempt to connect has met a standby only."""
        return isinstance(self._rounds.leadership.error, ServerIsStandby)

    def _beside(self) -> dict[str, str]:
        return {} if self.beside is None else self.beside().checks

    def _database(self) -> str:
        leadership = self._rounds.leadership
        if self.leads_to_standby():
            return "is a standby; the primary is needed"
        if leadership.error is not None and not isinstance(leadership.error, SchemaMismatch):
            return "cannot be used, the log says why"
        if leadership.running_seconds() > ANSWER_SECONDS:
            return f"has not answered for {ANSWER_SECONDS:.0f} s"
        return "has not been asked yet" if leadership.outcome is None else PASSED

    def _schema(self) -> str:
        is_ours = not isinstance(self._rounds.leadership.error, SchemaMismatch)
        return PASSED if is_ours else "is not the one of this mqdb, the log says why"

    def _has_standing(self) -> bool:
        return self._is_leader() or self._rounds.leadership.outcome is LeadershipState.FOLLOWER
