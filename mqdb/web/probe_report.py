"""The report of a probe: the checks of a process, and whether each has passed."""

from typing import Final, NamedTuple, Protocol

#: The result of a check that passes.
PASSED: Final = "ok"


class Report(NamedTuple):
    """The results of the checks by name: "ok", or the reason for the failure."""

    checks: dict[str, str]

    @property
    def failing(self) -> list[str]:
        """The names of the failed checks."""
        return [name for name, sentence in self.checks.items() if sentence != PASSED]

    @property
    def has_passed(self) -> bool:
        """Whether all checks passed."""
        return not self.failing


class Probes(Protocol):
    """The probes behind /healthz and /readyz."""

    def liveness(self) -> Report:
        """Whether the process is alive and needs no restart."""

    def readiness(self) -> Report:
        """Whether the process does its work."""
