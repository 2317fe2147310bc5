"""The key indexer: makes messages findable by key and unique id, a moment after their delivery.

This is a separate service, beside the dispatcher: one core builds the consume queue at about 300,000 messages a second,
and consume queue and key index together at 100,000 to 130,000. Keys are less urgent than messages.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from mqdb.broker.dispatch import IndexResult, index_keys
from mqdb.service.pace import Pace
from mqdb.service.service import Context, LoopService

#: Long, for larger batches, whose ids need fewer spans. A search for an id also reads records that are not indexed yet.
PACE: Final = Pace(busy=timedelta(milliseconds=200), idle=timedelta(milliseconds=200))


@dataclass(frozen=True, slots=True)
class KeyIndexerConfig:
    """Configuration of the key indexer."""

    max_rows: int = 50_000
    pace: Pace = PACE
    longest_sleep: timedelta = timedelta(seconds=10)
    """The maximum pause while nothing is dispatched."""


class KeyIndexer(LoopService[IndexResult]):
    """Runs `mqdb.index_keys` batch by batch."""

    name = "key indexer"

    def __init__(self, context: Context, config: KeyIndexerConfig = KeyIndexerConfig()) -> None:
        super().__init__(context)
        self._config = config
        self._pause = timedelta(0)

    def run_once(self, connection: Connection) -> IndexResult:
        """Index one batch.

        Does nothing while another session indexes, or a restored database waits for dispatch.
        """
        return index_keys(connection, self._config.max_rows)

    def pause_after(self, counts: IndexResult) -> timedelta:
        self._pause = self._config.pace.pause(self._pause, has_worked=counts.messages > 0, has_more=counts.more)
        is_idle = not counts.messages and not counts.more
        return self._config.longest_sleep if is_idle and self._has_waker else self._pause

    def pause_when_woken(self, since_round: timedelta) -> timedelta:
        return self._config.pace.busy
