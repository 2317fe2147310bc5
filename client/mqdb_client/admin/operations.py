"""Operations: what people and tools have changed on a broker, and who they are."""

from datetime import datetime, timedelta

from mqdb.common.clock import check_moment
from mqdb.store.operations import Operation, list_operations
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT


class Operations(Subject):
    """The changes that were made on a broker. `mqdb serve` keeps them for as long as `operation_reserved_time` says."""

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
        """Changes, the youngest first: those about a topic, a group and an object, by an actor or a role, since a time.

        An object is what else it was about: the name of a cron, the id of a message, a delay level. A redrive
        is about each of its messages. A timedelta is how
        long ago by the broker's clock. With `before` only those with a lower id, to go on behind the last one. Raises
        ParameterInvalid for a time without a zone, or too long ago.
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
