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
        """Changes, newest first, optionally only those that match all given arguments.

        `object` is another thing that was changed: the name of a cron, the id of a message, a delay level. A redrive is
        found by the id of each of its messages. `actor` is an actor or a role. `since` is a datetime, or a timedelta
        before now by the broker's clock. With `before`, returns only changes with a lower id; pass the id of the last
        change to continue after it. Raises ParameterInvalid for a time that has no zone or is too long ago.
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
