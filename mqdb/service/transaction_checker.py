"""The transaction checker: asks producers about half messages whose outcome they have not reported.

The checker runs every second, so that each half message is checked when it is due; RocketMQ goes through all of them
every transactionCheckInterval. RocketMQ: TransactionalMessageCheckService.
"""

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, func, select

from mqdb.broker.transactions.transaction_checks import Checked, CheckRules, CheckTurns, check, collect
from mqdb.service.service import Context, PeriodicService, tell_unreadable
from mqdb.store.transactions.half_checks import has_work
from mqdb.store.transactions.half_messages import prune

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionCheckerConfig:
    """The configuration of the transaction checker."""

    rules: CheckRules = field(default_factory=CheckRules)
    longest_interval: timedelta = timedelta(seconds=1)
    """The time between two rounds; shorter if the rules require shorter check intervals."""
    collected_at_once: int = 5_000
    checked_at_once: int = 1_000
    batches: int = 20
    """The maximum number of batches in a round: after an outage much is due, but other rounds must start, too."""
    pruned_at_once: int = 10_000

    @property
    def interval(self) -> timedelta:
        """The time between two rounds."""
        return min(self.longest_interval, self.rules.check_interval / 2, self.rules.transaction_timeout / 2)


@dataclass(slots=True)
class CheckerCounts:
    """The result of a round."""

    seen: int = 0
    """The number of newly scanned half messages."""
    prepared: int = 0
    """The number of half messages that have not ended."""
    committed: int = 0
    rolled_back: int = 0
    asked: int = 0
    postponed: int = 0
    """The number of half messages without a live producer."""
    discarded: int = 0
    lost: int = 0
    """The number of half messages given up without a copy, because they are no longer in the log."""
    pruned: int = 0


class TransactionChecker(PeriodicService[CheckerCounts]):
    """Checks half messages."""

    name = "transaction checker"

    def __init__(
        self,
        context: Context,
        scheduler: BackgroundScheduler,
        config: TransactionCheckerConfig = TransactionCheckerConfig(),
    ) -> None:
        super().__init__(context, scheduler, config.interval)
        self._config = config
        self._turns = CheckTurns()

    def prepare(self, connection: Connection) -> None:
        # A plan made while segments are empty would read them completely after they have filled.
        for name in ("enable_seqscan", "enable_bitmapscan"):
            connection.execute(select(func.set_config(name, "off", False)))

    def run_once(self, connection: Connection) -> CheckerCounts:
        """Scan new half messages, check due ones, and delete the rows of those that the log has dropped."""
        counts = CheckerCounts()
        if not has_work(connection):
            return counts
        self._collect(connection, counts)
        self._check(connection, counts)
        counts.pruned = prune(connection, self._config.pruned_at_once)
        if counts.asked or counts.discarded:
            fields = {"asked": counts.asked, "discarded": counts.discarded, "nobody_to_ask": counts.postponed}
            logger.info("asked about transactions", extra=fields)
        return counts

    def _collect(self, connection: Connection, counts: CheckerCounts) -> None:
        limit = self._config.collected_at_once
        for _ in range(self._config.batches):
            collected = collect(connection, self._config.rules, limit)
            if collected is None:
                return
            tell_unreadable("half messages", collected.unreadable)
            counts.seen += collected.seen
            counts.prepared += collected.prepared
            counts.committed += collected.committed
            counts.rolled_back += collected.rolled_back
            if collected.seen < limit:
                return

    def _check(self, connection: Connection, counts: CheckerCounts) -> None:
        limit = self._config.checked_at_once
        for _ in range(self._config.batches):
            checked = check(connection, self._config.rules, self._turns, limit)
            counts.asked += checked.asked
            counts.postponed += checked.postponed
            counts.discarded += len(checked.discarded)
            counts.lost += len(checked.lost)
            self._tell_given_up(checked)
            if checked.due < limit:
                return

    def _tell_given_up(self, checked: Checked) -> None:
        if checked.lost:
            fields = {"count": len(checked.lost), "first_log_pos": checked.lost[0]}
            sentence = "gave up %(count)s half messages that the log lost, first at position %(first_log_pos)s"
            logger.error(sentence, fields, extra=fields)
        if checked.discarded:
            fields = {"count": len(checked.discarded), "first_log_pos": checked.discarded[0]}
            sentence = (
                "gave up %(count)s half messages, first at position %(first_log_pos)s; list them with: "
                "mqdb transaction list --state discarded"
            )
            logger.warning(sentence, fields, extra=fields)
