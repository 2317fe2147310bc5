"""Health: whether this process is alive, and whether it is ready. Neither check queries the database.

/healthz shows a supervisor whether to restart the process: the check passes if each loop still runs rounds. A round
that waits for the database counts, regardless of its duration, because a restart would not bring the database back.
/readyz shows whether this process serves the broker. This check uses the last result of the leadership loop, which
queries the database continually.
"""

from collections.abc import Callable
from typing import Final

from mqdb.errors import SchemaMismatch, ServerIsStandby
from mqdb.service.leadership import LeadershipState
from mqdb.web.loop_rounds import Rounds
from mqdb.web.probe_report import PASSED, Report

#: A loop that has run no round for this long is stuck. The longest pause of a service is 10 s.
STUCK_SECONDS: Final = 30.0

#: The database has to answer within this time.
ANSWER_SECONDS: Final = 2.0


class Health:
    """Judges the health of a process by the rounds of its loops. Any thread may call the methods."""

    def __init__(self, rounds: Rounds, is_leader: Callable[[], bool]) -> None:
        self._rounds = rounds
        self._is_leader = is_leader
        self._is_stopping = False
        #: Whether parts beside the loops are still starting. During this time the process counts as alive.
        self.is_starting = False
        #: Reports whether the parts beside the loops are alive; None without such parts.
        self.beside: Callable[[], Report] | None = None

    def begin(self) -> None:
        """Note that the process starts to serve."""
        self._rounds.leadership.wake()
        self._is_stopping = False

    def end(self) -> None:
        """Report the process as not ready, because it is about to stop."""
        self._is_stopping = True

    def liveness(self) -> Report:
        """Whether each loop that should run has run a round recently, and the parts beside the loops are alive.

        A process that is stopping counts as alive.
        """
        if self._is_stopping:
            return Report({})
        stuck = f"has run no round for {STUCK_SECONDS:.0f} s"
        loops = self._rounds.running()
        checks = {loop.name: stuck if loop.idle_seconds() > STUCK_SECONDS else PASSED for loop in loops}
        return Report(checks | self._beside())

    def readiness(self) -> Report:
        """Whether the database answers, its schema fits this mqdb, and this process leads or sees a leader.

        The parts beside the loops must also have started and be alive.
        """
        database, schema = self._database(), self._schema()
        # Unknown while the database does not answer.
        is_known = database == schema == PASSED
        leadership = "does not lead and sees no leader" if is_known and not self._has_standing() else PASSED
        checks = {"database": database, "schema": schema, "leadership": leadership}
        if self._is_stopping or self.is_starting:
            return Report(checks | {"process": "is stopping" if self._is_stopping else "is starting"})
        return Report(checks | self._beside())

    def database_answers(self) -> bool:
        """Whether the last query was answered, and the current query has not waited too long."""
        return self._database() == PASSED

    def leads_to_standby(self) -> bool:
        """Whether the last attempt to connect found only a standby."""
        return isinstance(self._rounds.leadership.error, ServerIsStandby)

    def _beside(self) -> dict[str, str]:
        return {} if self.beside is None else self.beside().checks

    def _database(self) -> str:
        leadership = self._rounds.leadership
        if self.leads_to_standby():
            return "is a standby; the primary is needed"
        if leadership.error is not None and not isinstance(leadership.error, SchemaMismatch):
            return "cannot be used; see the log"
        if leadership.running_seconds() > ANSWER_SECONDS:
            return f"has not answered for {ANSWER_SECONDS:.0f} s"
        return "has not been queried yet" if leadership.outcome is None else PASSED

    def _schema(self) -> str:
        is_ours = not isinstance(self._rounds.leadership.error, SchemaMismatch)
        return PASSED if is_ours else "does not fit this mqdb; see the log"

    def _has_standing(self) -> bool:
        return self._is_leader() or self._rounds.leadership.outcome is LeadershipState.FOLLOWER
