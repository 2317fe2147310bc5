"""Transaction checks: find the half messages whose producers do not report an outcome, and ask them.

    collect    makes a row for each half message that is old enough and has no row; ended ones are skipped
    check      for due half messages: asks a live producer of the group and of the sender's role, or gives up

A producer is notified by NOTIFY, reads its checks from the rows (`open_checks`), and answers with `transactions.end`.
If that producer dies, another producer is asked immediately. Rounds without a live producer do not count as checks, and
neither does the time of immunity; RocketMQ counts both, and gives up on messages about which no producer was ever
asked. RocketMQ: TransactionalMessageServiceImpl.check, ProducerManager.getAvailableChannel.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.common.transaction import HalfEvent, HalfState, first_check_age
from mqdb.store.clients import clients
from mqdb.store.engine import transaction, translates
from mqdb.store.transactions import half_checks, half_messages
from mqdb.store.transactions.half_checks import DueHalf, NewHalf
from mqdb.store.transactions.half_messages import HalfRecord

#: The retention of ended rows, for people who look at the last hours.
STEPS_KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class CheckRules:
    """The rules for when, and how often, a producer is asked. Source: BrokerConfig."""

    transaction_timeout: timedelta = timedelta(seconds=6)
    """The age of a half message at its first check, unless it has an immunity."""
    check_interval: timedelta = timedelta(seconds=30)
    """The time between two checks of a half message."""
    check_max: int = 15
    """The number of checks without an outcome after which it is given up."""
    reserved: timedelta = timedelta(hours=72)
    """The time after which it is given up, even if it was never checked or is immune, because the log is not kept for
    longer. Source: TransactionalMessageServiceImpl.needSkip."""


@dataclass(slots=True)
class CheckTurns:
    """The turns of producers in each group of a role: round robin, for the lifetime of the service."""

    last: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def next(self, group: tuple[str, str | None], live: Sequence[str]) -> str | None:
        """The client after the last client asked, in the order of ids; None without a live client."""
        if not live:
            return None
        before = self.last.get(group, "")
        self.last[group] = next((client_id for client_id in live if client_id > before), live[0])
        return self.last[group]


class Collected(NamedTuple):
    """The result of a scan of new half messages."""

    seen: int
    prepared: int
    """The number of half messages that have not ended."""
    committed: int = 0
    rolled_back: int = 0
    unreadable: Sequence[int] = ()
    """The positions of half messages without a group or queue, about which no producer can be asked."""


class Checked(NamedTuple):
    """The outcome of the half messages that were due."""

    asked: int = 0
    postponed: int = 0
    """The number of half messages without a live producer."""
    discarded: Sequence[int] = ()
    """The positions of half messages that were given up."""
    lost: Sequence[int] = ()
    """The positions of half messages that were given up without a copy, because they are no longer in the log."""

    @property
    def due(self) -> int:
        """The number of all due half messages."""
        return self.asked + self.postponed + len(self.discarded) + len(self.lost)


@translates
def collect(connection: Connection, rules: CheckRules, limit: int) -> Collected | None:
    """Make rows for up to `limit` new half messages, until the first half message that is too young to be checked.

    The minimum age is `transaction_timeout`, so that usually all half messages have ended by then. Returns None while
    another session does this.
    """
    with transaction(connection):
        if not half_checks.begin(connection):
            return None
        seq, next_offset = half_checks.position(connection)
        entries = half_checks.entries(connection, next_offset, limit)
        halves = half_messages.find(connection, [entry.log_pos for entry in entries])
        ripe = list(takewhile(lambda half: _is_ripe(half, rules), halves))
        # A lost record cannot be checked; its entry is skipped with those before it.
        past = len(entries) if len(ripe) == len(halves) else _index(entries, halves[len(ripe)].log_pos)
        if not past:
            return Collected(0, 0)
        offsets = {entry.log_pos: entry.queue_offset for entry in entries}
        open_ends = [half for half in ripe if half.state is None]
        new = [_new(half, offsets[half.log_pos], rules) for half in open_ends if half.is_readable]
        prepared = half_checks.prepare(connection, new)
        half_checks.add_step(connection, seq + 1, entries[past - 1].queue_offset + 1, prepared)
        if not (seq + 1) % STEPS_KEPT:
            half_checks.prune_steps(connection, seq + 1 - STEPS_KEPT)
    states = Counter(half.state for half in ripe)
    # A half message of a role that does not own the broker has had its row since it was sent.
    prepared += states[HalfState.PREPARED]
    unreadable = [half.log_pos for half in open_ends if not half.is_readable]
    return Collected(past, prepared, states[HalfState.COMMITTED], states[HalfState.ROLLED_BACK], unreadable)


def _is_ripe(half: HalfRecord, rules: CheckRules) -> bool:
    # A half message from the future was stored before the clock was corrected. It must not block those behind it.
    is_old = not timedelta(0) <= half.now - half.stored_at < rules.transaction_timeout
    return half.state is not None or is_old


def _index(entries: Sequence[half_checks.Entry], log_pos: int) -> int:
    return next(number for number, entry in enumerate(entries) if entry.log_pos == log_pos)


def _new(half: HalfRecord, queue_offset: int, rules: CheckRules) -> NewHalf:
    stored_at = min(half.stored_at, half.now)
    age = min(first_check_age(half.immunity, rules.transaction_timeout), rules.reserved)
    names = half.producer_group, half.topic
    return NewHalf(half.log_pos, queue_offset, half.msg_id, *names, stored_at, stored_at + age, age)


@translates
def check(connection: Connection, rules: CheckRules, turns: CheckTurns, limit: int) -> Checked:
    """Check up to `limit` due half messages; give up on those that were checked too often.

    Does nothing while another session does this.
    """
    with transaction(connection):
        if not half_checks.begin(connection):
            return Checked()
        half_checks.take_from_the_dead(connection)
        half_checks.take_from_ahead(connection, rules.check_interval)
        due = half_checks.take_due(connection, limit, rules.transaction_timeout)
        if not due:
            return Checked()
        is_over = {half.log_pos for half in due if half.is_lost or _is_over(half, rules)}
        discarded, lost = _give_up(connection, sorted(is_over))
        open_ends = [half for half in due if half.log_pos not in is_over]
        live = clients.live_checkers(connection, sorted({half.producer_group for half in open_ends}))
        return Checked(*_ask(connection, open_ends, live, turns, rules.check_interval), discarded, lost)


def _is_over(half: DueHalf, rules: CheckRules) -> bool:
    return half.check_times >= rules.check_max or half.age >= rules.reserved


def _give_up(connection: Connection, positions: Sequence[int]) -> tuple[list[int], list[int]]:
    """Give up on half messages; returns the positions of those with a copy, and of those lost, which get no copy."""
    halves = half_messages.find(connection, positions)
    for half in halves:
        half_messages.end(connection, HalfEvent.GIVE_UP, half.key, may_be_immune=True)
    discarded = [half.log_pos for half in halves]
    lost = sorted(set(positions) - set(discarded))
    # Otherwise such a row would stay due for ever, and block those that are not lost.
    half_messages.close_lost(connection, lost)
    return discarded, lost


def _ask(
    connection: Connection,
    halves: Sequence[DueHalf],
    live: Mapping[tuple[str, str | None], Sequence[str]],
    turns: CheckTurns,
    interval: timedelta,
) -> tuple[int, int]:
    """Ask the next producer about each half message; returns how many were asked about and how many were postponed."""
    groups = [(half.producer_group, half.principal) for half in halves]
    chosen = [
        (half.log_pos, turns.next(group, live.get(group, ()))) for half, group in zip(halves, groups, strict=True)
    ]
    asked = [(log_pos, client_id) for log_pos, client_id in chosen if client_id is not None]
    postponed = [log_pos for log_pos, client_id in chosen if client_id is None]
    if asked:
        half_checks.ask(connection, asked, interval)
    if postponed:
        half_checks.postpone(connection, postponed, interval)
    return len(asked), len(postponed)


@translates
def first_unresolved_segment(connection: Connection) -> int:
    """The segment of the first half message that has not ended or was not scanned.

    Without such a message, the segment to which dispatch writes.
    """
    unseen = half_checks.first_unseen_segment(connection)
    prepared = half_messages.first_prepared(connection)
    return unseen if prepared is None else min(unseen, prepared)
