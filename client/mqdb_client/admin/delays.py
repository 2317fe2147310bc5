"""The delay levels: their waiting messages, and levels that are stuck."""

from mqdb.broker.schedule import delay_queues
from mqdb.errors import MessageMissing
from mqdb.store.schedule.delay_queues import LevelStanding, list_delays
from mqdb_client.admin.subject import Subject


class Delays(Subject):
    """The delay levels of a broker."""

    def find_lost(self, level: int) -> MessageMissing:
        """The message at which a level is stuck because the log has lost the message.

        Raises NothingLost if the level is not stuck, and ParameterInvalid if there is no such level.
        """
        with self._access.connected() as connection:
            return delay_queues.find_lost(connection, level)

    def skip(self, level: int, queue_offset: int, *, reason: str = "", actor: str | None = None) -> None:
        """Let a level continue after the lost message at this offset, which will never be delivered.

        Raises NothingLost if the level is not stuck at this offset, and ParameterInvalid if there is no such level.
        """
        with self._access.connected() as connection:
            delay_queues.skip_lost(connection, level, queue_offset, reason, actor or self._access.actor)

    def list(self) -> list[LevelStanding]:
        """List the delay levels, lowest first."""
        with self._access.dispatched() as connection:
            return list_delays(connection)
