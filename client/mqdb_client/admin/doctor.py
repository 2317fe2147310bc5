"""Doctor: what is wrong with a broker, and what to do about it."""

from collections.abc import Sequence

from mqdb.broker.doctor import examine
from mqdb.broker.doctor.finding import DEFAULT_THRESHOLDS, DoctorCheck, DoctorThresholds, Finding
from mqdb.errors import MqdbError
from mqdb_client.admin.subject import Subject


class Doctor(Subject):
    """Checks of a broker. They read only, and cost little."""

    def examine(
        self, thresholds: DoctorThresholds = DEFAULT_THRESHOLDS, only: Sequence[str] | None = None
    ) -> list[Finding]:
        """What all checks find, or those of these names, one after the other.

        A broker that cannot be reached is a finding, and no error. Raises ParameterInvalid for the name of no check.
        """
        examine.chosen(only)
        try:
            with self._access.connected() as connection:
                return examine.examine(connection, thresholds, only)
        except MqdbError as error:
            return examine.unreachable(error)

    @staticmethod
    def checks(only: Sequence[str] | None = None) -> tuple[DoctorCheck, ...]:
        """The checks that there are, or those of these names. Raises ParameterInvalid for the name of no check."""
        return examine.chosen(only)

    @staticmethod
    def exit_code(findings: Sequence[Finding]) -> int:
        """What `mqdb doctor` ends with: 0, 1 if something warns or a check has failed, 2 if something fails."""
        return examine.exit_code(findings)
