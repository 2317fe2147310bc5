"""The report of a probe: the checks of a process, and whether each has passed."""

from typing import Final, NamedTuple, Protocol

#: The result of a check that does not fail.
PASSED: Final = "ok"


class Report(NamedTuple):
    """The checks with a sentence for each: "ok", or the reason of its failure."""

    checks: dict[str, str]

    @property
    def failing(self) -> list[str]:
        """The checks that fail."""
        return [name for name, sentence in self.checks.items() if sentence != PASSED]

    @property
    def has_passed(self) -> bool:
        """Whether none fails."""
        return not self.failing


class Probes(Protocol):
    """The probes behind /healthz and /readyz."""

    def liveness(self) -> Report:
        """Whether the process is alive and needs no restart."""

    def readiness(self) -> Report:
        """Whether the process does its work."""
