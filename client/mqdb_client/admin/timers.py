"""Messages waiting for their time of delivery."""

from mqdb.broker.schedule import timers
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import ParameterInvalid
from mqdb.store.schedule.waiting_timers import WaitingTimer, list_timers
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT


class Timers(Subject):
    """A broker's messages waiting for their time of delivery."""

    def recall(self, message: str, *, actor: str | None = None) -> RecallStatus:
        """Recall a message, by its recall handle or its unique id; returns the outcome.

        Raises TopicNotFound, and RecallHandleInvalid for a string that is neither a handle nor an id, and for a handle
        of another broker.
        """
        with self._access.connected() as connection:
            try:
                unique_id = parse_unique_id(message)
            except ParameterInvalid:
                return timers.recall(connection, message, actor=actor or self._access.actor)
            return timers.recall_message(connection, unique_id, actor=actor or self._access.actor)

    def list(self, topic: str | None = None, limit: int = 100, *, last: bool = False) -> list[WaitingTimer]:
        """The waiting messages of one topic or of all topics: those due first or, with `last`, those due last."""
        LIMIT.check("limit", limit)
        with self._access.dispatched() as connection:
            return list_timers(connection, topic, limit, last=last)
