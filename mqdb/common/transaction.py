"""Transactions: the states of a half message, the events that change its state, and the time of its first check.

    PREPARED ──commit──▶ COMMITTED        a copy is in the real topic
        │ ▲ ──rollback─▶ ROLLED_BACK      it is never delivered
        │ └──resume──┐
        └──give up──▶ DISCARDED           a copy is in TRANS_CHECK_MAX_TIME_TOPIC, for people

COMMITTED and ROLLED_BACK are final: they allow no second COMMIT, so nothing more is stored. RocketMQ keeps no state,
and stores a second copy. RocketMQ: LocalTransactionState, TransactionalMessageServiceImpl.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final


class LocalTransactionState(StrEnum):
    """The state of a local transaction. UNKNOWN means not known yet, so check again later. RocketMQ writes UNKNOW."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


class HalfState(StrEnum):
    """The states in the CHECK constraint of the schema. A half message without a row is PREPARED."""

    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    DISCARDED = "DISCARDED"


class HalfEvent(StrEnum):
    """The events of a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    GIVE_UP = "GIVE_UP"
    """The half message was checked too often, or is too old."""
    RESUME = "RESUME"
    """An operator restarts the checks, counting from 0."""


#: All transitions.
TRANSITIONS: Final[Mapping[HalfState, Mapping[HalfEvent, HalfState]]] = {
    HalfState.PREPARED: {
        HalfEvent.COMMIT: HalfState.COMMITTED,
        HalfEvent.ROLLBACK: HalfState.ROLLED_BACK,
        HalfEvent.GIVE_UP: HalfState.DISCARDED,
    },
    HalfState.DISCARDED: {HalfEvent.RESUME: HalfState.PREPARED},
    HalfState.COMMITTED: {},
    HalfState.ROLLED_BACK: {},
}

#: The event for a half message by the end of its local transaction; UNKNOWN causes none.
EVENT_OF: Final[Mapping[LocalTransactionState, HalfEvent]] = {
    LocalTransactionState.COMMIT: HalfEvent.COMMIT,
    LocalTransactionState.ROLLBACK: HalfEvent.ROLLBACK,
}

#: Properties that RocketMQ does not reserve: a user sets the first, the broker the second.
CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"

#: The bit of sys_flag that a committed message has. Source: MessageSysFlag.TRANSACTION_COMMIT_TYPE.
COMMITTED_FLAG: Final = 8

#: The maximum immunity in seconds: the log is kept for a half message until it has ended.
#: Source: BrokerConfig.fileReservedTime, after which RocketMQ checks no half message, immune or not.
LONGEST_IMMUNITY_SECONDS: Final = 72 * 3_600


def source_of(event: HalfEvent) -> HalfState:
    """The only state in which an event is allowed."""
    (state,) = (state for state, ways in TRANSITIONS.items() if event in ways)
    return state


def target_of(event: HalfEvent) -> HalfState:
    """The state to which an event leads."""
    return TRANSITIONS[source_of(event)][event]


def immunity_of(text: str | None) -> timedelta | None:
    """The time during which a half message is not checked, from its property CHECK_IMMUNITY_TIME; None without it.

    A value that is not a whole number of at least 0 is ignored. Values above LONGEST_IMMUNITY_SECONDS are reduced to
    it.
    Source: TransactionalMessageServiceImpl.getImmunityTime.
    """
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return timedelta(seconds=min(int(text.lstrip("0")[:12] or "0"), LONGEST_IMMUNITY_SECONDS))


def first_check_age(immunity: str | None, transaction_timeout: timedelta) -> timedelta:
    """The age of a half message at its first check, which is at least the transaction timeout."""
    return max(immunity_of(immunity) or timedelta(0), transaction_timeout)
