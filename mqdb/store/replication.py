"""Replication, as reported by the server: its replay, standbys, slots, archive and publications.

Each function is one statement on PostgreSQL's own catalogs. PostgreSQL hides most data on other roles' sessions from a
role without pg_read_all_stats; such fields are None.
"""

import re
from typing import Final, LiteralString, NamedTuple, TypeVar

from psycopg.rows import class_row
from sqlalchemy import Connection

from mqdb.store.engine import driver

T = TypeVar("T")


class Recovery(NamedTuple):
    """The progress of a standby."""

    primary: str | None
    """The server that sends to it; None without such a server, or if the role may not see it."""
    is_receiving: bool
    """Whether it is connected to a server. A standby that replays an archive is not."""
    replayed_seconds: float | None
    """The time since the commit of the last replayed transaction; None before the first one."""
    behind_bytes: int | None
    """The bytes that it has received, or that its primary is known to have, but that it has not replayed;

    None if it has received nothing.
    """


_RECOVERY: Final = """
SELECT w.sender_host || coalesce(':' || w.sender_port, '') AS primary, w.pid IS NOT NULL AS is_receiving,
       extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float AS replayed_seconds,
       CASE WHEN known.lsn IS NOT NULL THEN greatest(known.lsn - pg_last_wal_replay_lsn(), 0)::bigint END
           AS behind_bytes
FROM (SELECT pg_is_in_recovery() AS is_standby) AS here LEFT JOIN pg_stat_wal_receiver w ON true,
     LATERAL greatest(pg_last_wal_receive_lsn(), w.latest_end_lsn) AS known (lsn)
WHERE here.is_standby
"""


def recovery(connection: Connection) -> Recovery | None:
    """The progress of this standby; None if the server is not a standby."""
    found = _all(connection, Recovery, _RECOVERY)
    return found[0] if found else None


def is_standby(connection: Connection) -> bool:
    """Whether the server is a standby, which replays another server's log and refuses writes."""
    return driver(connection).execute("SELECT pg_is_in_recovery()").fetchone() == (True,)


class Receiver(NamedTuple):
    """A connected standby, or a connected subscriber to a publication."""

    name: str
    """The standby's application_name, which synchronous_standby_names uses."""
    state: str | None
    sync_state: str | None
    behind_bytes: int | None
    """The bytes that it has yet to replay."""
    behind_seconds: float | None
    """The time that the replay of the last records took; 0 if there was nothing to do."""


_RECEIVERS: Final = """
SELECT r.application_name AS name, r.state, r.sync_state,
       CASE WHEN r.replay_lsn IS NOT NULL THEN greatest(here.lsn - r.replay_lsn, 0)::bigint END AS behind_bytes,
       CASE WHEN r.state IS NOT NULL THEN coalesce(extract(epoch FROM r.replay_lag), 0)::float END AS behind_seconds
FROM pg_stat_replication r,
     LATERAL (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END)
         AS here (lsn)
WHERE r.state IS DISTINCT FROM 'backup' ORDER BY r.application_name, r.pid
"""


def receivers(connection: Connection) -> list[Receiver]:
    """The standbys and subscribers that receive the log of this server. A base backup is left out."""
    return _all(connection, Receiver, _RECEIVERS)


class SyncWaits(NamedTuple):
    """The visible sessions whose commits wait for a synchronous standby."""

    sessions: int
    oldest_seconds: float
    """The time since the start of the oldest of these commits, or of its statement; 0 if no session waits."""


_SYNC_WAITS: Final = """
SELECT count(*)::integer AS sessions,
       coalesce(extract(epoch FROM clock_timestamp() - min(state_change)), 0)::float AS oldest_seconds
FROM pg_stat_activity WHERE wait_event = 'SyncRep'
"""


def sync_waits(connection: Connection) -> SyncWaits:
    """The commits that wait now."""
    return _all(connection, SyncWaits, _SYNC_WAITS)[0]


class SynchronousStandbys(NamedTuple):
    """The setting synchronous_standby_names. Source: PostgreSQL, syncrep_gram.y."""

    number: int
    """The number of standbys that have to answer; 0 if commits do not wait for standbys."""
    names: tuple[str, ...]
    """The names of the standbys; * means any."""

    def fits(self, receiver: Receiver) -> bool:
        """Whether commits may wait for this standby. PostgreSQL ignores case here."""
        return "*" in self.names or receiver.name.lower() in {name.lower() for name in self.names}


_NUMBERED: Final = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_NAME: Final = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


def parse_synchronous_standbys(setting: str) -> SynchronousStandbys:
    """The meaning of a value of synchronous_standby_names."""
    numbered = _NUMBERED.fullmatch(setting)
    listed = numbered[2] if numbered else setting
    names = tuple(quoted.replace('""', '"') or plain for quoted, plain in _NAME.findall(listed))
    number = int(numbered[1]) if numbered else 1
    return SynchronousStandbys(number if names else 0, names)


def synchronous_standbys(connection: Connection) -> SynchronousStandbys:
    """The standbys for which commits of this server wait."""
    row = driver(connection).execute("SELECT current_setting('synchronous_standby_names')").fetchone()
    assert row is not None
    return parse_synchronous_standbys(row[0])


class Slot(NamedTuple):
    """A replication slot, which keeps the log from the position that its user has reached."""

    name: str
    is_active: bool
    wal_status: str | None
    """reserved, extended, unreserved or lost. Source: PostgreSQL, pg_replication_slots."""
    kept_bytes: int
    """The size of the log that it keeps, or 0."""


_SLOTS: Final = """
SELECT s.slot_name AS name, s.active AS is_active, s.wal_status,
       greatest(here.lsn - s.restart_lsn, 0)::bigint AS kept_bytes
FROM pg_replication_slots s,
     LATERAL (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)
         AS here (lsn)
ORDER BY kept_bytes DESC, s.slot_name
"""


def slots(connection: Connection) -> list[Slot]:
    """All slots of the server; the slot that keeps most comes first."""
    return _all(connection, Slot, _SLOTS)


class Archiver(NamedTuple):
    """The state of archiving PostgreSQL's log, by `archive_command` or a library."""

    failures: int
    """The number of failures since the statistics were reset."""
    failed_wal: str | None
    """The file that failed last."""
    failing_seconds: float | None
    """The time since the last archived file, or since the statistics were reset if no file was archived;

    None if the last attempt did not fail.
    """


_ARCHIVER: Final = """
SELECT a.failed_count::integer AS failures, a.last_failed_wal AS failed_wal,
       CASE WHEN a.last_failed_time > coalesce(a.last_archived_time, '-infinity')
            THEN extract(epoch FROM clock_timestamp() - coalesce(a.last_archived_time, a.stats_reset))::float
       END AS failing_seconds
FROM pg_stat_archiver a
WHERE current_setting('archive_mode') = 'always' OR current_setting('archive_mode') = 'on' AND NOT pg_is_in_recovery()
"""


def archiver(connection: Connection) -> Archiver | None:
    """The archiver of this server; None if archiving is off."""
    found = _all(connection, Archiver, _ARCHIVER)
    return found[0] if found else None


class UnidentifiedTable(NamedTuple):
    """A table of mqdb whose rows cannot be changed, because it is in a publication and has no replica identity."""

    name: str
    publication: str


_UNIDENTIFIED: Final = """
SELECT c.relname AS name, min(p.pubname) AS publication
FROM pg_class c
JOIN pg_publication p ON p.pubupdate OR p.pubdelete
WHERE c.relnamespace = to_regnamespace('mqdb') AND c.relkind = 'r' AND c.relpersistence = 'p'
  AND CASE c.relreplident WHEN 'f' THEN false WHEN 'n' THEN true
      WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
      ELSE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident) END
  AND (p.puballtables
       OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace)
       OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid
                  AND r.prrelid IN (SELECT c.oid UNION ALL SELECT pg_partition_ancestors(c.oid))))
GROUP BY c.relname ORDER BY c.relname
"""


def unidentified_tables(connection: Connection) -> list[UnidentifiedTable]:
    """The tables whose updates and deletions fail (SQLSTATE 55000), each with one such publication."""
    return _all(connection, UnidentifiedTable, _UNIDENTIFIED)


class Replication(NamedTuple):
    """The complete replication state of a primary, at one moment."""

    timeline: int | None
    """The timeline, which changes at each promotion; None on a standby."""
    receivers: list[Receiver]
    sync_waits: SyncWaits
    slots: list[Slot]
    archiver: Archiver | None
    unidentified_tables: int


_TIMELINE: Final = """
SELECT CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END
"""


def look(connection: Connection) -> Replication:
    """The current state."""
    row = driver(connection).execute(_TIMELINE).fetchone()
    assert row is not None
    return Replication(
        row[0],
        receivers(connection),
        sync_waits(connection),
        slots(connection),
        archiver(connection),
        len(unidentified_tables(connection)),
    )


def _all(connection: Connection, of: type[T], statement: LiteralString) -> list[T]:
    with driver(connection).cursor(row_factory=class_row(of)) as cursor:
        return cursor.execute(statement).fetchall()
