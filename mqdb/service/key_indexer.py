"""The key indexer: makes messages findable by key and unique id, a moment after their delivery.

A service of its own, beside the dispatcher: one core builds the consume queue at about 300,000 messages a second,
and consume queue and key index together at 100,000 to 130,000. Nobody waits for a key as for a message.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection

from mqdb.service.pace import Pace
from mqdb.service.service import Context, LoopService
from mqdb.store.engine import driver

PACE: Final = Pace(busy=timedelta(milliseconds=20), idle=timedelta(milliseconds=200))

_INDEX_KEYS: Final = "SELECT messages, more FROM mqdb.index_keys(%s)"


@dataclass(frozen=True, slots=True)
class KeyIndexerConfig:
    """How the key indexer works."""

    max_rows: int = 50_000
    pace: Pace = PACE


class IndexCounts(NamedTuple):
    """`more` says that the round of batches goes on."""

    messages: int
    more: bool


class KeyIndexer(LoopService[IndexCounts]):
    """Runs `mqdb.index_keys` batch by batch."""

    name = "key indexer"

    def __init__(self, context: Context, config: KeyIndexerConfig = KeyIndexerConfig()) -> None:
        super().__init__(context)
        self._config = config
        self._pause = timedelta(0)

    def run_once(self, connection: Connection) -> IndexCounts:
        """One batch. None is done while another session is at it, or a restored database waits for its dispatch."""
        row = driver(connection).execute(_INDEX_KEYS, (self._config.max_rows,)).fetchone()
        assert row is not None
        messages, more = row
        assert isinstance(messages, int)
        return IndexCounts(messages, bool(more))

    def pause_after(self, counts: IndexCounts) -> timedelta:
        self._pause = self._config.pace.pause(self._pause, has_worked=counts.messages > 0, has_more=counts.more)
        return self._pause
