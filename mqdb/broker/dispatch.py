"""Dispatch: assign queue offsets to records that have become visible, and index their keys. The work is done in SQL.

In SQL: `mqdb/sql/dispatch/dispatch.sql`, `mqdb/sql/dispatch/fall_asleep.sql`, `mqdb/sql/dispatch/index_keys.sql`,
`mqdb/sql/dispatch/is_attended.sql`, `mqdb/sql/dispatch/mend_dispatcher_state.sql`,
`mqdb/sql/dispatch/stay_awake.sql`, `mqdb/sql/dispatch/take_places.sql`.
"""

from enum import StrEnum
from typing import Final, NamedTuple

import psycopg
from sqlalchemy import Connection

from mqdb.store.engine import driver, translate, translates

#: Messages in one batch: about 0.2 s of work, and never more than a segment holds.
MAX_ROWS = 50_000


class DispatchOutcome(StrEnum):
    """The result of a call."""

    DISPATCHED = "DISPATCHED"
    IDLE = "IDLE"
    LOCKED = "LOCKED"  #: another session is dispatching
    ADOPTED = "ADOPTED"  #: the database was restored, and one of its segments has been compared


class DispatchResult(NamedTuple):
    """The result of a call. `more` means that the round continues: call again immediately."""

    outcome: DispatchOutcome
    messages: int
    more: bool


def dispatch(connection: Connection, max_rows: int = MAX_ROWS) -> DispatchResult:
    """Dispatch one batch. Needs a connection in AUTOCOMMIT; can be called at any time.

    Raises ParameterInvalid inside a transaction that has written or is not READ COMMITTED.
    """
    return _dispatch(connection, "SELECT outcome, messages, more FROM mqdb.dispatch(%s)", max_rows)


def wake_and_dispatch(connection: Connection, max_rows: int = MAX_ROWS) -> DispatchResult:
    """`stay_awake`, then `dispatch`, in one round trip."""
    return _dispatch(connection, _WAKE_AND_DISPATCH, max_rows)


#: As an argument of dispatch, it makes PostgreSQL set the state first.
_WAKE_AND_DISPATCH: Final = """
SELECT d.outcome, d.messages, d.more
FROM setval('mqdb.dispatcher_state', 2) AS state, LATERAL mqdb.dispatch(CASE state WHEN 2 THEN %s END) AS d
"""


def _dispatch(connection: Connection, statement: str, max_rows: int) -> DispatchResult:
    try:
        row = driver(connection).execute(statement, (max_rows,)).fetchone()
    except psycopg.Error as error:
        raise translate(error, connection) from error
    assert row is not None
    return _result(*row)


def _result(outcome: str, messages: int, more: bool) -> DispatchResult:
    return DispatchResult(DispatchOutcome(outcome), messages, more)


#: The channel on which senders wake a sleeping dispatcher.
WAKE_CHANNEL: Final = "mqdb_wake"


@translates
def fall_asleep(connection: Connection, max_rows: int = MAX_ROWS, *, places: bool = True) -> DispatchResult | None:
    """Dispatch once more, after which the caller may sleep; None while a transaction with new records is open.

    Until `stay_awake`, each such transaction then wakes the caller: by a notification on WAKE_CHANNEL, and on a server
    with prepared transactions through the result of `look`. While the caller sleeps and `places` is true, appends
    assign the offsets of their records (`mqdb/sql/dispatch/take_places.sql`), and do not wake it for these.
    """
    row = driver(connection).execute(_FALL_ASLEEP, (max_rows, places)).fetchone()
    assert row is not None
    is_asleep, *result = row
    return _result(*result) if is_asleep else None


_FALL_ASLEEP: Final = "SELECT is_asleep, outcome, messages, more FROM mqdb.fall_asleep(%s, %s)"


class SleepLook(NamedTuple):
    """The result of a check by a sleeping dispatcher, which checks at least once a second."""

    is_woken: bool  #: waiting records have been written
    is_behind: bool  #: positions have been assigned since the last checkpoint: to placed records, unless it is woken


@translates
def look(connection: Connection) -> SleepLook:
    """Check two sequences and the newest checkpoint. Raises MqdbError."""
    row = driver(connection).execute(_LOOK).fetchone()
    assert row is not None
    return SleepLook(*row)


_LOOK: Final = """
SELECT s.last_value NOT IN (1, 4), l.last_value > (
    SELECT c.tail_pos FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1)
FROM mqdb.dispatcher_state s, mqdb.log_pos l
"""


@translates
def is_notified(connection: Connection) -> bool:
    """Whether every sender can notify the dispatcher to wake it, by the rules of `mqdb.wake_dispatcher`."""
    row = driver(connection).execute(_IS_NOTIFIED).fetchone()
    return row == (True,)


_IS_NOTIFIED: Final = """SELECT current_setting('max_prepared_transactions') = '0'
                                AND current_setting('synchronous_standby_names') = ''"""


@translates
def last_position(connection: Connection) -> int:
    """The last position that was taken."""
    row = driver(connection).execute("SELECT last_value FROM mqdb.log_pos").fetchone()
    assert row is not None
    return int(row[0])


@translates
def mend_state(connection: Connection) -> bool:
    """Rebuild the state of the dispatcher if PostgreSQL cannot read it; returns whether that was needed."""
    return driver(connection).execute("SELECT mqdb.mend_dispatcher_state()").fetchone() == (True,)


@translates
def stay_awake(connection: Connection) -> None:
    """End the notifications by senders, because the dispatcher is awake."""
    driver(connection).execute("SELECT mqdb.stay_awake()")


class IndexResult(NamedTuple):
    """The result of a call. `more` means that the round continues: call again immediately."""

    messages: int
    more: bool


@translates
def index_keys(connection: Connection, max_rows: int = MAX_ROWS) -> IndexResult:
    """Index the keys of one batch.

    Does nothing while another session indexes keys, or a restored database is being compared.
    """
    row = driver(connection).execute("SELECT messages, more FROM mqdb.index_keys(%s)", (max_rows,)).fetchone()
    assert row is not None
    messages, more = row
    return IndexResult(messages, bool(more))


@translates
def is_attended(connection: Connection) -> bool:
    """Whether a leader runs the services: its backend exists, and its promise has not expired.

    Without a leader, clients that wait for messages dispatch them. A missing backend reveals a dead leader immediately;
    an expired promise reveals a hung leader.
    """
    row = driver(connection).execute("SELECT mqdb.is_attended()").fetchone()
    return row == (True,)
