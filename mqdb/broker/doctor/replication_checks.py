"""Checks of replication: standbys, commits that wait for them, publications, slots, the archive."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.doctor.finding import (
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    grade,
    identifier,
    listed,
    literal,
    one_each,
    size,
    span,
)
from mqdb.broker.doctor.session_checks import unless_hidden
from mqdb.common.durability import Durability
from mqdb.store import broker_settings, replication
from mqdb.store.replication import Receiver, Recovery, Slot

FAIL, WARN, INFO, OK = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.INFO, FindingStatus.OK


def _standby(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    recovery = replication.recovery(connection)
    if recovery is not None:
        return [_of_standby(recovery, thresholds)]
    connected = replication.receivers(connection)
    seen = f"; connected to it: {_named(connected)}" if connected else ""
    return fine(f"this server is not a standby{seen}", is_standby=False, receivers=len(connected))


def _of_standby(recovery: Recovery, thresholds: DoctorThresholds) -> Observation:
    figures = {"is_standby": True, **recovery._asdict()}
    source = f"of {recovery.primary}" if recovery.primary else "of a server that is not visible to the role"
    seen = f"this server is a standby {source if recovery.is_receiving else 'but receives nothing'}"
    if recovery.replayed_seconds is not None:
        seen += f"; the last transaction that it replayed was committed {span(recovery.replayed_seconds)} ago"
    if recovery.behind_bytes is not None:
        seen += f"; it has yet to replay {size(recovery.behind_bytes)}"
    is_late = (recovery.replayed_seconds or 0) > thresholds.standby_warn_seconds
    if is_late and (recovery.behind_bytes or not recovery.is_receiving):
        remedy = "SELECT * FROM pg_stat_wal_receiver;  -- and read the log of the standby"
        return Observation(WARN, seen, remedy, figures)
    return Observation(INFO, seen, None, figures)


def _synchronous(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    if replication.is_standby(connection):
        return fine("this server is a standby, so nothing commits here")
    wanted = replication.synchronous_standbys(connection)
    default = broker_settings.default_durability(connection)
    waits_by_default = default is Durability.SYNC_MASTER
    if not wanted.number:
        return [_NO_SECOND_COPY] if waits_by_default else fine("commits do not wait for a standby")
    connected = replication.receivers(connection)
    fitting = [each for each in connected if wanted.fits(each)]
    whom = f"commits wait for {wanted.number} of {listed(wanted.names)}, of which {len(fitting)} are connected"
    whom += f"; the server has {_named(connected) or 'no standby'}"
    found: list[Observation] = []
    if len(fitting) < wanted.number:
        found.append(
            Observation(
                FAIL,
                whom,
                "start the standby; or ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",
                {"wanted": wanted.number, "fitting": len(fitting), "names": ", ".join(wanted.names)},
            )
        )
    waits = replication.sync_waits(connection)
    status = grade(waits.oldest_seconds, thresholds.sync_warn_seconds, thresholds.sync_fail_seconds)
    if status is not OK:
        found.append(
            Observation(
                status,
                f"{waits.sessions:,} sessions wait for a standby to confirm their commits, the oldest for "
                f"{span(waits.oldest_seconds)}; {whom}",
                "check the standby and the network; if you end a waiting session, its commit is still valid",
                {"sessions": waits.sessions, "waited_seconds": round(waits.oldest_seconds, 1)},
            )
        )
    senders = "sends do, too" if waits_by_default else "a send waits only if its producer requested it"
    seen = f"{waits.sessions:,} sessions wait for a standby, none for long; {whom}; "
    seen += f"{senders}: the broker's default_durability is {default}"
    return found or unless_hidden(connection, seen, sessions=waits.sessions)


_NO_SECOND_COPY: Final = Observation(
    WARN,
    "the broker's default_durability is SYNC_MASTER, but the server has no synchronous standby: sends have no second "
    "copy, and their status is SLAVE_NOT_AVAILABLE",
    "name a standby in synchronous_standby_names, or start mqdb serve with MQDB_DEFAULT_DURABILITY=SYNC_FLUSH",
)


def _named(receivers: Sequence[Receiver]) -> str:
    """The names, with as much detail as the role may see."""

    def described(each: Receiver) -> str:
        words = [each.state, each.sync_state]
        if each.behind_bytes is not None:
            words.append(f"{size(each.behind_bytes)} behind")
        told = ", ".join(word for word in words if word)
        return f"{each.name} ({told})" if told else each.name

    return listed(map(described, receivers))


def _publications(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    return one_each(
        replication.unidentified_tables(connection),
        lambda each: Observation(
            FAIL,
            f"rows of mqdb.{each.name} cannot be changed: publication {each.publication} includes the table, which "
            f"has no replica identity",
            f"ALTER TABLE mqdb.{identifier(each.name)} REPLICA IDENTITY FULL;",
            {"table": each.name, "publication": each.publication},
        ),
    ) or fine("no publication prevents changes of mqdb's tables")


def _slots(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    slots = replication.slots(connection)
    # On a standby they are copies of the primary's slots, or wait until it becomes a primary.
    is_standby = replication.is_standby(connection)

    def observe(each: Slot) -> Observation:
        status = grade(each.kept_bytes, thresholds.slot_warn_bytes, thresholds.slot_fail_bytes)
        is_left = not each.is_active and not is_standby
        if each.wal_status == "lost":
            status = FAIL
        elif status is OK and (each.wal_status == "unreserved" or is_left):
            status = WARN
        words = [f"slot {each.name} keeps {size(each.kept_bytes)} of PostgreSQL's log"]
        words += ["it is not in use"] if not each.is_active else []
        words += [f"its wal_status is {each.wal_status}"] if each.wal_status in ("unreserved", "lost") else []
        return Observation(
            status,
            ", and ".join(words),
            f"SELECT pg_drop_replication_slot({literal(each.name)});  -- if its user does not come back; "
            "max_slot_wal_keep_size limits the log that slots keep",
            {"slot": each.name, "active": each.is_active, "kept_bytes": each.kept_bytes, "wal_status": each.wal_status},
        )

    bad = [each for each in slots if observe(each).status is not OK]
    most = max((each.kept_bytes for each in slots), default=0)
    return one_each(bad, observe) or fine(
        f"{len(slots):,} slots, none of which keeps more than {size(most)} of PostgreSQL's log"
        if slots
        else "there are no slots",
        slots=len(slots),
        kept_bytes=most,
    )


def _archiver(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    archiver = replication.archiver(connection)
    if archiver is None:
        return [Observation(INFO, "this server does not archive PostgreSQL's log")]
    if archiver.failing_seconds is not None:
        return [
            Observation(
                FAIL if archiver.failing_seconds > thresholds.archive_fail_seconds else WARN,
                f"{archiver.failed_wal} could not be archived; nothing has been archived for "
                f"{span(archiver.failing_seconds)}. Until this succeeds, PostgreSQL keeps its log, which fills the "
                f"disk",
                "SHOW archive_command;  -- and look for its errors in the log of PostgreSQL",
                {"failures": archiver.failures, "failing_seconds": round(archiver.failing_seconds, 1)},
            )
        ]
    return fine(f"the last attempt to archive succeeded; {archiver.failures:,} have failed", failures=archiver.failures)


CHECKS: Final[Checks] = {
    DoctorCheck(
        "standby",
        "whether the server is a standby, its primary, and its delay; the standbys of a primary",
        "INFO on a standby; WARN if its last transaction is older than {standby_warn_seconds} s, and it has received "
        "more or is not connected to its primary",
        "to write, name the proxy or all hosts in the DSN, without `target_session_attrs`: mqdb finds the primary; "
        "promote a standby if there is no primary; if the standby lags, read its log",
    ): _standby,
    DoctorCheck(
        "synchronous",
        "`synchronous_standby_names`, the connected standbys, and sessions whose commits wait for them",
        "FAIL if too few named standbys are connected; WARN if no standby is named and the broker's "
        "`default_durability` is SYNC_MASTER; WARN if a commit waits longer than {sync_warn_seconds} s, FAIL "
        "above {sync_fail_seconds} s",
        "start the standby, or name others",
    ): _synchronous,
    DoctorCheck(
        "publications",
        "publications of updates or deletions that include tables of mqdb without a replica identity",
        "FAIL if there is such a publication: PostgreSQL refuses to change these tables",
        "`ALTER TABLE ... REPLICA IDENTITY FULL`",
    ): _publications,
    DoctorCheck(
        "slots",
        "the amount of PostgreSQL's log that each replication slot keeps, `active` and `wal_status`",
        "WARN above {slot_warn_bytes:,} bytes, FAIL above {slot_fail_bytes:,}; WARN for an unreserved slot, or an "
        "inactive slot unless on a standby; FAIL for a lost slot",
        "`pg_drop_replication_slot`, `max_slot_wal_keep_size`",
    ): _slots,
    DoctorCheck(
        "archiver",
        "`pg_stat_archiver`, if the server archives",
        "WARN if the last attempt failed, FAIL if also nothing has been archived for {archive_fail_seconds} s",
        "correct `archive_command`",
    ): _archiver,
}
