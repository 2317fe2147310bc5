"""The examination: all checks of a broker, one by one, each in its own read-only transaction.

A check that fails or takes too long gives a finding UNKNOWN, and does not affect the others.
"""

import logging
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.doctor import (
    group_checks,
    log_checks,
    replication_checks,
    schedule_checks,
    server_checks,
    service_checks,
    session_checks,
)
from mqdb.broker.doctor.finding import DEFAULT_THRESHOLDS, Checks, DoctorCheck, DoctorThresholds, Finding, FindingStatus
from mqdb.errors import MqdbError, ParameterInvalid, SchemaMismatch
from mqdb.store.acl import is_guest
from mqdb.store.engine import driver, is_idle, transaction, translated

logger = logging.getLogger(__name__)

#: In reading order: checks on which the others depend come first.
ALL_CHECKS: Final[Checks] = {
    **server_checks.CHECKS,
    **replication_checks.CHECKS,
    **session_checks.CHECKS,
    **service_checks.CHECKS,
    **log_checks.CHECKS,
    **group_checks.CHECKS,
    **schedule_checks.CHECKS,
}


def chosen(only: Sequence[str] | None = None, first: Sequence[DoctorCheck] = ()) -> tuple[DoctorCheck, ...]:
    """The checks with these names, or all checks; `first` are the caller's own checks.

    Raises ParameterInvalid for an unknown name.
    """
    every = (*first, *ALL_CHECKS)
    known = [check.name for check in every]
    for name in only or ():
        if name not in known:
            raise ParameterInvalid("only", name, f"is not a check; the checks are: {', '.join(known)}")
    return tuple(check for check in every if only is None or check.name in only)


def examine(
    connection: Connection, thresholds: DoctorThresholds = DEFAULT_THRESHOLDS, only: Sequence[str] | None = None
) -> list[Finding]:
    """The findings of the checks, in order. Takes a connection in AUTOCOMMIT.

    Raises ParameterInvalid for an unknown check, and BrokerUnavailable if the connection is already lost.
    """
    checks = chosen(only)
    with translated(connection):
        guest = is_guest(connection)
    return [finding for check in checks for finding in _look(connection, check, thresholds, guest)]


def unreachable(error: MqdbError) -> list[Finding]:
    """The finding for a broker that refuses connections, or whose schema has another version."""
    if isinstance(error, SchemaMismatch):
        return [Finding("schema", FindingStatus.FAIL, str(error), server_checks.schema_remedy(error))]
    return [Finding("connection", FindingStatus.FAIL, str(error), server_checks.LOOK_AT_DSN)]


def exit_code(findings: Sequence[Finding]) -> int:
    """0: no problems, as far as the role can see; 1: a warning, or a check itself failed; 2: a failure."""
    statuses = {finding.status for finding in findings}
    if FindingStatus.FAIL in statuses:
        return 2
    return int(FindingStatus.WARN in statuses or any(finding.error is not None for finding in findings))


def _look(connection: Connection, check: DoctorCheck, thresholds: DoctorThresholds, guest: bool) -> list[Finding]:
    if guest and check.needs_owner:
        seen = "not visible to the role: it needs the rights of the owner of the broker"
        return [Finding(check.name, FindingStatus.UNKNOWN, seen)]
    if not is_idle(connection):
        return [_failed(check, "the connection was lost")]
    timeout = f"{thresholds.statement_timeout_seconds}s"
    try:
        with translated(connection), transaction(connection):
            driver(connection).execute(
                """SELECT set_config('statement_timeout', %s, true), set_config('transaction_read_only', 'on', true)""",
                [timeout],
            )
            observations = ALL_CHECKS[check](connection, thresholds)
    except MqdbError as error:
        return [_failed(check, str(error))]
    except Exception as error:  # a doctor is most useful after unexpected errors
        fields = {"check": check.name}
        logger.exception("check %(check)s of the doctor failed", fields, extra=fields)
        return [_failed(check, repr(error))]
    of_its_own = "; counts only what the role may see" if guest and check.is_partial else ""
    return [
        Finding(check.name, each.status, each.seen + of_its_own, each.remedy, each.figures) for each in observations
    ]


def _failed(check: DoctorCheck, reason: str) -> Finding:
    return Finding(check.name, FindingStatus.UNKNOWN, f"the check itself failed: {reason}", error=reason)
