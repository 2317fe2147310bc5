"""Operations: the changes that people and tools have made on a broker."""

from datetime import datetime, timedelta

from mqdb.common.clock import check_moment
from mqdb.store.operations import Operation, list_operations
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT


class Operations(Subject):
    """The changes that were made on a broker. `mqdb serve` keeps them for `operation_reserved_time`."""

    def list(
        self,
        *,
        topic: str | None = None,
        group: str | None = None,
        object: str | None = None,
        actor: str | None = None,
        since: datetime | timedelta | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Operation]:
        """Changes, newest first, optionally only to a topic, group or object, by an actor or role, or since a time.

        An object is another thing that was changed: the name of a cron, the id of a message, a delay level. A redrive
        counts for each of its messages. A timedelta means how long ago by the broker's clock. With `before`, returns
        only changes with a lower id, to continue after the last one. Raises ParameterInvalid for a time without a zone,
        or too long ago.
        """
        LIMIT.check("limit", limit)
        if since is not None:
            check_moment("since", since)
        with self._access.connected() as connection:
            return list_operations(
                connection,
                topic=topic,
                group=group,
                object=object,
                actor=actor,
                since=since,
                before=before,
                limit=limit,
            )
