"""Checks of sessions that block others: old snapshots, idle transactions, locks, notifications.

A role without pg_read_all_stats sees little of other roles' sessions. A check then reports what it found among the
visible sessions, or that the state is unknown.
"""

from typing import Any, Final

from sqlalchemy import Connection

from mqdb.broker.doctor.finding import (
    LOOK_AT_STANDBYS,
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    grade,
    graded,
    identifier,
    listed,
    literal,
    one_each,
    row,
    rows,
    span,
)

WARN, UNKNOWN, OK = FindingStatus.WARN, FindingStatus.UNKNOWN, FindingStatus.OK

#: The application names of `mqdb serve` sessions: its own name when they connect, then that of the service.
SERVICES: Final = frozenset(
    {
        "mqdb serve",
        "mqdb leadership",
        "mqdb dispatcher",
        "mqdb key indexer",
        "mqdb delay deliverer",
        "mqdb timer deliverer",
        "mqdb timer keeper",
        "mqdb transaction checker",
        "mqdb cron sender",
        "mqdb segment keeper",
        "mqdb client reaper",
        "mqdb sampler",
    }
)


def _xmin(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # An open transaction that has written holds back vacuum by its own id. Vacuum does not hold back itself.
    held = rows(
        connection,
        """SELECT * FROM (
               SELECT 'backend' AS kind, a.pid::text AS name,
                      concat_ws(', ', a.usename, a.application_name, a.state) AS who,
                      greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions,
                      coalesce(a.wait_event = 'SyncRep', false) AS waits_for_standby
               FROM pg_stat_activity a
               WHERE (a.datid IS NULL OR a.datname = current_database()) AND a.pid <> pg_backend_pid()
                 AND a.backend_type <> 'autovacuum worker'
               UNION ALL
               SELECT 'slot', slot_name, slot_type, greatest(age(xmin), age(catalog_xmin)), false
               FROM pg_replication_slots
               UNION ALL
               SELECT 'prepared transaction', gid, owner, age(transaction), false FROM pg_prepared_xacts
               WHERE database = current_database()
           ) AS held WHERE transactions IS NOT NULL ORDER BY transactions DESC""",
    )
    remedies = {
        "backend": lambda name: f"SELECT pg_terminate_backend({name});",
        "slot": lambda name: f"SELECT pg_drop_replication_slot({literal(name)});",
        "prepared transaction": lambda name: f"ROLLBACK PREPARED {literal(name)};",
    }

    def observe(each: Any) -> Observation:
        return Observation(
            grade(each.transactions, thresholds.xmin_warn_transactions, thresholds.xmin_fail_transactions),
            f"{each.kind} {each.name} ({each.who}) holds back the removal of dead rows of {each.transactions:,} "
            f"transactions",
            LOOK_AT_STANDBYS if each.waits_for_standby else remedies[each.kind](each.name),
            {"kind": each.kind, "name": each.name, "transactions": each.transactions},
        )

    old = [each for each in held if observe(each).status is not OK]
    oldest = max((each.transactions for each in held), default=0)
    return one_each(old, observe) or unless_hidden(
        connection, f"the oldest snapshot is {oldest:,} transactions old", transactions=oldest
    )


def _idle(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    idle = rows(
        connection,
        """SELECT pid, concat_ws(', ', usename, application_name) AS who,
                  extract(epoch FROM clock_timestamp() - state_change)::float AS seconds
           FROM pg_stat_activity WHERE datname = current_database() AND starts_with(state, 'idle in transaction')
           ORDER BY state_change""",
    )

    def observe(each: Any) -> Observation:
        return Observation(
            grade(each.seconds, thresholds.idle_warn_seconds, thresholds.idle_fail_seconds),
            f"backend {each.pid} ({each.who}) has done nothing in its transaction for {span(each.seconds)}",
            f"SELECT pg_terminate_backend({each.pid});  -- and set idle_in_transaction_session_timeout",
            {"pid": each.pid, "idle_seconds": round(each.seconds, 1)},
        )

    long = [each for each in idle if observe(each).status is not OK]
    return one_each(long, observe) or unless_hidden(
        connection, f"{len(idle):,} transactions are idle, but none for long", transactions=len(idle)
    )


def unless_hidden(connection: Connection, seen: str, **figures: int) -> list[Observation]:
    """An observation that everything is fine, unless the role cannot see the statements of some sessions.

    Autovacuum has no role and is not counted.
    """
    hidden = row(
        connection,
        """SELECT count(*) AS sessions, current_user AS me FROM pg_stat_activity
           WHERE datname = current_database() AND usesysid IS NOT NULL AND query = '<insufficient privilege>'""",
    )
    if not hidden.sessions:
        return fine(seen, **figures)
    unseen = f"the activity of {hidden.sessions:,} sessions of other roles is not visible; of the others: {seen}"
    grant = f"GRANT pg_read_all_stats TO {identifier(hidden.me)};  -- as a superuser"
    return [Observation(UNKNOWN, unseen, grant, {**figures, "hidden_sessions": hidden.sessions})]


def _locks(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # A session that waits for a row actually waits for a transaction id, and has locked the table.
    waiting = rows(
        connection,
        """SELECT w.pid, w.mode, coalesce(w.relation::regclass::text, w.locktype) AS what,
                  pg_blocking_pids(w.pid) AS blockers,
                  extract(epoch FROM clock_timestamp() - w.waitstart)::float AS seconds
           FROM pg_locks w
           WHERE NOT w.granted AND w.waitstart IS NOT NULL AND w.pid IN (
               SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
               WHERE c.relnamespace = 'mqdb'::regnamespace
                 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
           ORDER BY w.waitstart""",
    )
    long = [each for each in waiting if each.seconds > thresholds.lock_warn_seconds]

    def observe(each: Any) -> Observation:
        front = _front(connection, each.pid)
        seen = f"backend {each.pid} has waited {span(each.seconds)} for {each.mode} on {each.what}, behind "
        seen += listed(each.blockers)
        if front is not None and front.pid not in each.blockers:
            seen += f"; backend {front.pid} ({front.who}) blocks all of them"
        return Observation(
            WARN,
            seen,
            None if front is None else _way_out(front),
            {
                "pid": each.pid,
                "lock": each.what,
                "waited_seconds": round(each.seconds, 1),
                "behind": listed(each.blockers),
            },
        )

    return one_each(long, observe) or fine("no session has waited long for a lock", waiting=len(waiting))


def _front(connection: Connection, pid: int) -> Any:
    """The session for which a backend waits, directly or through others; None if it no longer waits.

    Sessions waiting for a standby come first, then those not waiting for any lock; in a deadlock any session may come
    first. The pid is 0 for a prepared transaction, which has no backend.
    """
    found = rows(
        connection,
        """WITH RECURSIVE chain (pid) AS (
               SELECT unnest(pg_blocking_pids(%(pid)s))
               UNION SELECT unnest(pg_blocking_pids(chain.pid)) FROM chain WHERE chain.pid <> 0)
           SELECT chain.pid, concat_ws(', ', a.usename, a.application_name) AS who,
                  coalesce(a.wait_event = 'SyncRep', false) AS waits_for_standby,
                  coalesce(a.query = '<insufficient privilege>', false)
                      AND current_setting('synchronous_standby_names') <> '' AS may_wait_for_standby,
                  coalesce(a.application_name = ANY (%(services)s), false) AS is_service
           FROM chain LEFT JOIN pg_stat_activity a USING (pid)
           ORDER BY waits_for_standby DESC, cardinality(pg_blocking_pids(chain.pid)), chain.pid LIMIT 1""",
        pid=pid,
        services=sorted(SERVICES),
    )
    return found[0] if found else None


def _way_out(front: Any) -> str:
    """The remedy for the blocking session.

    A session that waits for a standby has committed, so ending it does not help.
    """
    if front.pid == 0:
        return "SELECT * FROM pg_prepared_xacts;  -- and ROLLBACK PREPARED"
    if front.waits_for_standby or front.may_wait_for_standby:
        return LOOK_AT_STANDBYS
    if front.is_service:
        return f"{LOOK_AT_STANDBYS},leader  # and read the log of mqdb serve"
    return f"SELECT pg_terminate_backend({front.pid});"


def _notify_queue(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    share = row(connection, "SELECT pg_notification_queue_usage() AS share").share
    status = grade(share, thresholds.notify_warn_share, thresholds.notify_fail_share)
    remedy = "mqdb doctor --only idle-in-transaction  # one of these sessions listens"
    return graded(status, f"the queue of notifications is {share:.1%} full", remedy, share=share)


CHECKS: Final[Checks] = {
    DoctorCheck(
        "xmin",
        "the oldest snapshot of backends, replication slots and prepared transactions",
        "WARN above {xmin_warn_transactions:,} transactions, FAIL above {xmin_fail_transactions:,}",
        "end the backend, drop the slot, finish the prepared transaction",
    ): _xmin,
    DoctorCheck(
        "idle-in-transaction",
        "the time for which a transaction has been idle",
        "WARN above {idle_warn_seconds} s, FAIL above {idle_fail_seconds} s",
        "correct the client; `idle_in_transaction_session_timeout`",
    ): _idle,
    DoctorCheck(
        "locks",
        "sessions that use mqdb's tables and wait for a lock, and the sessions that block them",
        "WARN above {lock_warn_seconds} s",
        "end the blocking session, unless it waits for a standby or is a service of mqdb",
    ): _locks,
    DoctorCheck(
        "notify-queue",
        "`pg_notification_queue_usage()`",
        "WARN above {notify_warn_share:.0%}, FAIL above {notify_fail_share:.0%}",
        "end the listener named by `idle-in-transaction`",
    ): _notify_queue,
}
