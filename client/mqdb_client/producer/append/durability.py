"""Durability: what a commit waits for before a send is acknowledged. RocketMQ: FlushDiskType, BrokerRole, SendStatus.

Durability is a setting of the connection that appends (PostgreSQL: synchronous_commit), made once after each connect,
so the setting adds no cost to a send. If the producer has chosen no durability, its connection gets the default
of the broker. Under SYNC_MASTER a commit also waits for a standby. If this wait is cancelled, the message stays stored
on the master: the statement succeeds with a warning. The `CommitWait` of each such connection listens for this warning:

    connect ──▶ apply       no standby is there: commits do not wait, and are SLAVE_NOT_AVAILABLE at once
    append  ──▶ status      no warning, and the server still names standbys: SEND_OK
                            the warning: FLUSH_SLAVE_TIMEOUT while a standby is connected, else SLAVE_NOT_AVAILABLE

If a standby is lost, Patroni empties synchronous_standby_names. Waiting commits then return without a warning. So each
status check queries whether the server still names standbys: this is one more round trip, besides the commit's round
trip to the standby.

If the wait is cut off rather than cancelled (by a lost connection or pg_terminate_backend), the client does not learn
the outcome. The message is also stored in this case, but invisible until the server has ended the waiting session.

Source: HAService.isSlaveOK, CommitLog.handleHA; PostgreSQL's "Synchronous Replication" and syncrep.c.
"""

import math
import time
from typing import Final

from psycopg.errors import Diagnostic
from sqlalchemy import Connection, and_, case, column, exists, func, not_, select, table

from mqdb.common.durability import Durability
from mqdb.common.message import SendStatus
from mqdb.errors import MqdbError, ParameterInvalid
from mqdb.store.broker_settings import default_durability
from mqdb.store.engine import driver, translated

#: How long a connection assumes that there are standbys to wait for (one heartbeat, like other cached facts; after a
#: failed wait it checks immediately), and that there are none (shorter, because messages sent in this time have no
#: second copy).
STANDBY_BELIEVED_SECONDS: Final = 30.0
NO_STANDBY_BELIEVED_SECONDS: Final = 1.0

#: The key in `Connection.info` of the CommitWait of a connection whose commits wait for standbys.
COMMIT_WAIT: Final = "mqdb_commit_wait"

# The file of PostgreSQL's source in which commits wait for standbys. Unlike the text of a warning it is never
# translated (lc_messages).
_SOURCE_OF_WARNING: Final = "syncrep.c"


_LEVELS: Final = {Durability.ASYNC_FLUSH: "off", Durability.SYNC_FLUSH: "local"}


def refuse_shared(durability: Durability) -> None:
    """Raise ParameterInvalid unless the durability of a producer behind a transaction pooler is SYNC_FLUSH.

    Behind a pooler each statement may run in another session.
    """
    if durability is not Durability.SYNC_FLUSH:
        reason = "needs connections of its own, and pool_dsn names a pooler that shares them; leave pool_dsn out"
        raise ParameterInvalid("durability", durability.value, reason)


def refuse_shared_default(connection: Connection) -> None:
    """Raise ParameterInvalid for a producer without a chosen durability, if the broker's default is SYNC_MASTER.

    A default of ASYNC_FLUSH promises less than SYNC_FLUSH, so it is not refused.
    """
    with translated(connection):
        default = default_durability(connection)
    if default is Durability.SYNC_MASTER:
        reason = (
            "the broker asks for it (its setting default_durability), and pool_dsn names a pooler, behind which no "
            "send can wait for a standby; leave pool_dsn out, or choose durability=Durability.SYNC_FLUSH"
        )
        raise ParameterInvalid("durability", default.value, reason)


def chosen_or_default(connection: Connection, chosen: Durability | None) -> Durability:
    """The durability that a producer has chosen, or the current default of its broker."""
    if chosen is not None:
        return chosen
    with translated(connection):
        return default_durability(connection)


def apply(connection: Connection, durability: Durability) -> None:
    """Set the `durability` of all commits on a new connection. Raises BrokerUnavailable and its subclasses."""
    if durability is Durability.SYNC_MASTER:
        connection.info[COMMIT_WAIT] = CommitWait(connection)
    else:
        with translated(connection):
            connection.execute(select(func.set_config("synchronous_commit", _LEVELS[durability], False)))


def status_of(connection: Connection) -> SendStatus:
    """The reason why a commit has no second copy: the standbys are late or missing. Works on any connection.

    One connected standby is enough, even if the server requires several (`ANY 2 (a, b)`).
    """
    with translated(connection):
        has_standby = connection.scalar(_HAS_STANDBY)
    return SendStatus.FLUSH_SLAVE_TIMEOUT if has_standby else SendStatus.SLAVE_NOT_AVAILABLE


class CommitWait:
    """The durability that commits on one connection wait for, and whether they reached it.

    Each connection has its own CommitWait.
    """

    def __init__(self, connection: Connection) -> None:
        # It holds no reference to the connection, so that both are freed together.
        driver(connection).add_notice_handler(self._heard)
        self._has_given_up = False
        self._look_at = -math.inf
        self._look(connection)

    def begin(self, connection: Connection) -> None:
        """Begin an append."""
        if time.monotonic() >= self._look_at:
            self._look(connection)
        self._has_given_up = False

    def status(self, connection: Connection) -> SendStatus:
        """The status of everything appended since `begin`."""
        if self._has_given_up or (self._status is SendStatus.SEND_OK and not _names_standbys(connection)):
            self._look_at = -math.inf
            return _reason(connection)
        return self._status

    def _look(self, connection: Connection) -> None:
        """Let commits wait for standbys if the server has standbys."""
        with translated(connection):
            level = connection.scalar(_WAIT_FOR_STANDBYS)
        is_alone = level == _ALONE
        self._status = SendStatus.SLAVE_NOT_AVAILABLE if is_alone else SendStatus.SEND_OK
        self._look_at = time.monotonic() + (NO_STANDBY_BELIEVED_SECONDS if is_alone else STANDBY_BELIEVED_SECONDS)

    def _heard(self, notice: Diagnostic) -> None:
        # The driver calls this in the thread that runs the statement, before the statement returns.
        if notice.source_file == _SOURCE_OF_WARNING:
            self._has_given_up = True


def _names_standbys(connection: Connection) -> bool:
    """Whether the server currently names standbys for commits to wait for. Also False if the query fails."""
    try:
        with translated(connection):
            row = driver(connection).execute(_NAMES_STANDBYS).fetchone()
    except MqdbError:
        return False
    return row is not None and bool(row[0])


def _reason(connection: Connection) -> SendStatus:
    try:
        return status_of(connection)
    except MqdbError:
        # Time is up, or a late cancel request hit this statement. Stored messages stay stored.
        return SendStatus.FLUSH_SLAVE_TIMEOUT


# -- statements -------------------------------------------------------------------------------

_ALONE: Final = "local"

_standby = table("pg_stat_replication", column("sync_state"), schema="pg_catalog")
_setting = table("pg_settings", column("name"), column("reset_val"), schema="pg_catalog")

# A standby that catches up is `potential`, and no commit waits for it. Without the rights of pg_read_all_stats a user
# sees the standbys, but their state is NULL.
_IS_SYNCHRONOUS = func.coalesce(_standby.c.sync_state.in_(["sync", "quorum"]), True)
_IS_STANDBY_THERE = and_(
    func.current_setting("synchronous_standby_names") != "",
    exists().select_from(_standby).where(_IS_SYNCHRONOUS),
)
_HAS_STANDBY = select(_IS_STANDBY_THERE)
_NAMES_STANDBYS: Final = "SELECT pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''"

_OWN_LEVEL = select(_setting.c.reset_val).where(_setting.c.name == "synchronous_commit").scalar_subquery()
_LEVEL = case((not_(_IS_STANDBY_THERE), _ALONE), (_OWN_LEVEL == "remote_apply", "remote_apply"), else_="on")
_WAIT_FOR_STANDBYS = select(
    func.set_config("synchronous_commit", _LEVEL, False),
    # The server has to send the warning.
    func.set_config("client_min_messages", "warning", False),
)
