"""Doctor: finds problems of a broker and suggests remedies."""

from collections.abc import Sequence
from typing import Final

from mqdb.broker.doctor import examine
from mqdb.broker.doctor.finding import DEFAULT_THRESHOLDS, DoctorCheck, DoctorThresholds, Finding, FindingStatus
from mqdb.errors import MqdbError
from mqdb.settings import unknown_variables
from mqdb_client.admin.subject import Subject

#: A check of the calling process; the broker is not involved.
_ENVIRONMENT: Final = DoctorCheck(
    "environment",
    "the variables `MQDB_...` of the process that runs the doctor",
    "WARN for a variable that mqdb does not read",
    "correct its name, or unset it",
)


class Doctor(Subject):
    """Checks of a broker. The checks only read, and are cheap."""

    def examine(
        self, thresholds: DoctorThresholds = DEFAULT_THRESHOLDS, only: Sequence[str] | None = None
    ) -> list[Finding]:
        """Run all checks, or only the checks named in `only`, and return their findings in order.

        An unreachable broker is a finding, not an error. Raises ParameterInvalid for an unknown name.
        """
        checks = self.checks(only)
        found = environment_findings(checks)
        names = [check.name for check in checks if check is not _ENVIRONMENT]
        try:
            with self._access.connected() as connection:
                return found + examine.examine(connection, thresholds, names)
        except MqdbError as error:
            return found + examine.unreachable(error)

    @staticmethod
    def checks(only: Sequence[str] | None = None) -> tuple[DoctorCheck, ...]:
        """All checks, or only the checks named in `only`. Raises ParameterInvalid for an unknown name."""
        return examine.chosen(only, [_ENVIRONMENT])

    @staticmethod
    def exit_code(findings: Sequence[Finding]) -> int:
        """The exit code of `mqdb doctor`: 2 for a failure, 1 for a warning or a check that could not run, else 0."""
        return examine.exit_code(findings)


def environment_findings(checks: Sequence[DoctorCheck]) -> list[Finding]:
    """The findings of the check `environment`, if `checks` contains it. The check needs no broker."""
    if _ENVIRONMENT not in checks:
        return []
    unknown = unknown_variables()
    if not unknown:
        return [Finding(_ENVIRONMENT.name, FindingStatus.OK, "all variables MQDB_... are known")]
    return [
        Finding(
            _ENVIRONMENT.name,
            FindingStatus.WARN,
            f"{each.name} is not known and is ignored" + (f"; did you mean {each.near}?" if each.near else ""),
            f"unset {each.name}  # or correct its name, and start the process again",
            {"variable": each.name, "did_you_mean": each.near},
        )
        for each in unknown
    ]
