"""Findings: the result of a check as plain data, and the thresholds above which it warns.

A check returns `Observation`s: one if everything is fine, or one per problem, with the command that helps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final, LiteralString, NamedTuple, TypeAlias, TypeVar

from psycopg import sql
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection

from mqdb.store.engine import driver

T = TypeVar("T")

HOUR_SECONDS: Final = 3_600

#: The number of problems of one check that are listed; the others are counted.
_NAMED: Final = 10

#: The remedy for a service that does not work because it has no leader or waits for another session.
LOOK_AT_SERVICES: Final = "mqdb doctor --only leader,locks  # and read the log of mqdb serve"

#: The remedy for a commit that does not end while others wait behind it.
LOOK_AT_STANDBYS: Final = "mqdb doctor --only synchronous"


class FindingStatus(StrEnum):
    """The severity of a finding, worst first."""

    FAIL = "FAIL"
    WARN = "WARN"
    UNKNOWN = "UNKNOWN"  #: the role may not check this, or the check itself failed
    INFO = "INFO"
    OK = "OK"


@dataclass(frozen=True, slots=True)
class DoctorThresholds:
    """The values above which a check warns or fails, unless stated otherwise."""

    oldest_server_major: int = 15
    """The check fails for lower server versions."""
    newest_server_major: int = 18
    connections_warn_share: float = 0.8
    """The share of max_connections, without reserved connections."""
    connections_fail_share: float = 0.9
    disk_warn_share: float = 0.8
    disk_fail_share: float = 0.9
    clock_warn_seconds: float = 0.5
    clock_fail_seconds: float = 2
    freeze_warn_share: float = 1.1
    """The share of autovacuum_freeze_max_age, the age at which autovacuum starts to freeze."""
    freeze_fail_share: float = 1.5
    bloat_least_rows: int = 10_000
    """A table with at most this many dead rows does not count as bloated."""
    bloat_warn_factor: float = 10
    """The number of dead rows per live row."""
    bloat_fail_factor: float = 100
    notify_warn_share: float = 0.1
    notify_fail_share: float = 0.5
    xmin_warn_transactions: int = 100_000
    xmin_fail_transactions: int = 10_000_000
    idle_warn_seconds: float = 300
    idle_fail_seconds: float = 3_600
    lock_warn_seconds: float = 1
    standby_warn_seconds: float = 60
    sync_warn_seconds: float = 5
    sync_fail_seconds: float = 30
    slot_warn_bytes: int = 2**30
    slot_fail_bytes: int = 10 * 2**30
    archive_fail_seconds: float = 3_600
    behind_warn_seconds: float = 10
    behind_fail_seconds: float = 60
    segments_warn: int = 1
    """Segments ahead of the log: the check warns at this number or below."""
    segments_fail: int = 0
    """The check fails at this number or below."""
    reserved_hours: float = 72
    """The setting file_reserved_time of `mqdb serve`."""
    overdue_warn_hours: float = 24
    """The time after `reserved_hours`; segments are dropped only at some hours of the day."""
    lag_warn_seconds: float = 600
    filter_newest_messages: int = 1_000
    """The number of messages that a topic needs for a filter to be judged; as many are read per filter."""
    unowned_warn_seconds: float = 30
    letters_recent_seconds: float = 3_600
    """The check warns about younger dead letters."""
    letters_warn_share: float = 0.8
    """The age of the oldest dead letter, as a share of `reserved_hours`."""
    delivery_warn_seconds: float = 10
    cron_warn_seconds: float = 60
    half_warn_seconds: float = 450
    """The product of the defaults of check_max and check_interval."""
    statement_timeout_seconds: float = 5
    """A check that takes longer is aborted."""


DEFAULT_THRESHOLDS: Final = DoctorThresholds()

Value: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    check: str
    """The name of the check."""
    status: FindingStatus
    seen: str
    """A sentence that describes the observation."""
    remedy: str | None = None
    """A command, or another action; None if there is nothing to do."""
    figures: Mapping[str, Value] = field(default_factory=dict)
    """The numbers and names in the sentence; the keys contain the units."""
    error: str | None = None
    """Why the check itself failed, in which case the finding is UNKNOWN; None otherwise."""


class Observation(NamedTuple):
    """A finding without the name of its check."""

    status: FindingStatus
    seen: str
    remedy: str | None = None
    figures: Mapping[str, Value] = {}


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check and its descriptions for people. `problem` may contain thresholds in braces, see `problem_at`."""

    name: str
    looks_at: str
    problem: str
    remedy: str
    needs_owner: bool = False
    """Whether a role that does not own the broker would see nothing."""
    is_partial: bool = False
    """Whether such a role sees only the topics and groups on which it has a right."""

    def problem_at(self, thresholds: DoctorThresholds) -> str:
        """The condition for a warning or failure, with these thresholds."""
        return self.problem.format(**asdict(thresholds))


#: The checks of a module, and their functions.
Checks: TypeAlias = Mapping[DoctorCheck, Callable[[Connection, DoctorThresholds], Sequence[Observation]]]


def fine(seen: str, **figures: Value) -> list[Observation]:
    """The only observation of a check that found no problem."""
    return [Observation(FindingStatus.OK, seen, None, figures)]


def grade(value: float, warn: float, fail: float) -> FindingStatus:
    """The status of a value that should not exceed `warn`, and must not exceed `fail`."""
    if value > fail:
        return FindingStatus.FAIL
    return FindingStatus.WARN if value > warn else FindingStatus.OK


def graded(status: FindingStatus, seen: str, remedy: str, **figures: Value) -> list[Observation]:
    """The only observation of a check, with the remedy unless everything is fine."""
    return [Observation(status, seen, None if status is FindingStatus.OK else remedy, figures)]


def one_each(found: Sequence[T], observe: Callable[[T], Observation]) -> list[Observation]:
    """One observation for each of the first problems, and another that counts the remaining problems."""
    named = [observe(each) for each in islice(found, _NAMED)]
    left = len(found) - len(named)
    if left > 0:
        worst = min((each.status for each in named), key=list(FindingStatus).index)
        named.append(Observation(worst, f"{left:,} more like these", named[-1].remedy, {"more": left}))
    return named


def rows(connection: Connection, statement: LiteralString, **values: Any) -> list[Any]:
    """The rows of a statement, as named tuples."""
    with driver(connection).cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(statement, values or None).fetchall()


def row(connection: Connection, statement: LiteralString, **values: Any) -> Any:
    """The only row returned by a statement."""
    [found] = rows(connection, statement, **values)
    return found


def span(seconds: float) -> str:
    """A duration as text. A negative duration, after the clock was set back, is shown as 0."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.1f} s"


def size(number: int) -> str:
    """A number of bytes in readable form."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number} bytes"


def listed(names: Iterable[object], most: int = 5) -> str:
    """The first of the names, and the number of the remaining names."""
    every = [str(each) for each in names]
    left = len(every) - most
    return ", ".join(every[:most]) + (f" and {left:,} more" if left > 0 else "")


def identifier(name: str) -> str:
    """A name quoted for SQL."""
    return sql.Identifier(name).as_string()


def literal(text: str) -> str:
    """A string quoted for SQL."""
    return sql.Literal(text).as_string()
