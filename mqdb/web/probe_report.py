"""What a probe says: the checks of a process, and whether each has passed."""

from typing import Final, NamedTuple, Protocol

#: What a check says that does not fail.
PASSED: Final = "ok"


class Report(NamedTuple):
    """What was checked, and a sentence for each check: "ok", or why it fails."""

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
    """What /healthz and /readyz ask."""

    def liveness(self) -> Report:
        """Whether the process need not be started anew."""

    def readiness(self) -> Report:
        """Whether it does its work."""
