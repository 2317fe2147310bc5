"""Rounds: the state of the loops of this process, and the numbers of rounds that succeeded and failed.

A loop reports its rounds through its `Context`: a round begins with a call of `connect` or `may_act`, and ends with
`on_round`, which receives the counts of the round or its error. Only the loop's own thread writes;
all other threads only read.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection

from mqdb.common.clock import Clock, SystemClock
from mqdb.service.service import Context
from mqdb.web.durations import Durations

#: The names of the counts that are added up over all rounds.
SUMMED: Final = ("messages", "prepared", "committed", "rolled_back", "discarded", "lost")


class LoopRounds:
    """The rounds of one loop since the process started."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self.rounds = 0
        self.failures = 0
        self.sums: Counter[str] = Counter()
        """The sums of the counts of all rounds, by the names in SUMMED; 0 if the rounds have no such count."""
        self.durations: dict[str, Durations] = {}
        """The durations of rounds by their outcome: "FAILED" for an error, "" for an outcome without a name."""
        self.succeeded_at: float | None = None
        """The Unix time of the last successful round; None before the first success."""
        self.outcome: object = None
        """The counts of the last round, or its error; None from the start of the loop until its first round ends."""
        self.begun_at: float | None = None
        """The start of the current round, by the monotonic clock; None between two rounds."""
        self._idle_since = self._clock.monotonic()

    @property
    def error(self) -> Exception | None:
        """The error of the last round; None if it succeeded."""
        return self.outcome if isinstance(self.outcome, Exception) else None

    def idle_seconds(self) -> float:
        """The seconds since the last round ended; 0 during a round.

        Between `wake` and the next round, the seconds since `wake`.
        """
        return 0.0 if self.begun_at is not None else self._clock.monotonic() - self._idle_since

    def running_seconds(self) -> float:
        """The seconds that the current round has taken; 0 between two rounds."""
        begun_at = self.begun_at
        return 0.0 if begun_at is None else self._clock.monotonic() - begun_at

    def wake(self) -> None:
        """Note that the loop starts or restarts."""
        self.outcome = None
        self.pause()

    def begin(self) -> None:
        """Note that a round begins. During a round, further calls have no effect."""
        if self.begun_at is None:
            self.begun_at = self._clock.monotonic()

    def pause(self) -> None:
        """Note that the loop waits for its next round."""
        self._idle_since = self._clock.monotonic()
        self.begun_at = None

    def end(self, outcome: object) -> None:
        """Note that a round has ended, with its counts or its error."""
        self.outcome = outcome
        self.rounds += 1
        failed = isinstance(outcome, Exception)
        name = "FAILED" if failed else str(getattr(outcome, "outcome", ""))
        self.durations.setdefault(name, Durations()).add(self.running_seconds())
        if failed:
            self.failures += 1
        else:
            self.succeeded_at = self._clock.now().timestamp()
            for field in SUMMED:
                number = getattr(outcome, field, 0)
                self.sums[field] += number if isinstance(number, int) else 0
        self.pause()


class Rounds:
    """The loops of a process: leadership, which always runs, and the services, which run while it leads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.leadership = LoopRounds("leadership", self._clock)
        self.services: dict[str, LoopRounds] = {}
        self._services_run = False

    def watch_leadership(self, context: Context) -> Context:
        """A context for leadership that also notes its rounds here."""
        return _watched(self.leadership, context)

    def watch(self, name: str, context: Context) -> Context:
        """A context for a service that also notes its rounds here. If its name is known, its counts continue."""
        return _watched(self.services.setdefault(name, LoopRounds(name, self._clock)), context)

    def services_start(self) -> None:
        """Note that the services are about to start."""
        for each in self.services.values():
            each.wake()
        self._services_run = True

    def services_stop(self) -> None:
        """Note that the services are about to stop."""
        self._services_run = False

    def running(self) -> Iterable[LoopRounds]:
        """The loops that should be running rounds now."""
        return [self.leadership, *(self.services.values() if self._services_run else ())]


def _watched(loop: LoopRounds, context: Context) -> Context:
    def connect() -> Connection:
        loop.begin()
        return context.connect()

    def may_act() -> bool:
        loop.begin()
        is_allowed = context.may_act()
        if not is_allowed:
            loop.pause()
        return is_allowed

    def on_round(outcome: object) -> None:
        loop.end(outcome)
        context.on_round(outcome)

    return replace(context, connect=connect, may_act=may_act, on_round=on_round)
