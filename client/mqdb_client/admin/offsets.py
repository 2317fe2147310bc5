"""Offsets of groups: show and set them. RocketMQ: mqadmin resetOffsetByTime, cloneGroupOffset."""

from collections.abc import Collection
from datetime import datetime, timedelta

from mqdb.broker.consumers import groups, offset_reset
from mqdb.broker.consumers.offset_reset import Boundary
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.consumers.groups import QueueProgress
from mqdb.store.consumers.offset_changes import OffsetChange
from mqdb.store.topics.topics import existing_topic
from mqdb_client.admin.subject import Subject


class Offsets(Subject):
    """The offsets of the groups of a broker."""

    def show(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """The progress of a group in each queue that it has read, in one topic or in all. Raises GroupNotFound."""
        with self._access.dispatched() as connection:
            return groups.show_group(connection, group, topic).progress

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The next offset of a group in each queue of a topic, except queues without an offset. Raises TopicNotFound.

        Cheaper than `show`, which also finds the ends of the queues.
        """
        with self._access.connected() as connection:
            found = existing_topic(connection, topic)
            reached = committed_offsets(connection, group, found.queue_keys)
        return {queue_id: reached[key] for queue_id, key in enumerate(found.queue_keys) if key in reached}

    def reset(
        self,
        group: str,
        topic: str,
        to: Boundary | int | datetime | timedelta,
        *,
        queue_id: int | None = None,
        reason: str = "",
        dry_run: bool = False,
        actor: str | None = None,
    ) -> list[OffsetChange]:
        """Move a group to another position in a topic, in all queues or in one; returns the changes.

        `to` is one end of the queue, an offset, a time, or a timedelta before now by the broker's clock. A time stands
        for the first message stored at or after that time. Members may be running: they drop their messages in hand.
        With `dry_run` nothing changes. Raises TopicNotFound, GroupNotFound, QueueNotFound; ParameterInvalid for an
        offset that a queue does not have, for a time without a zone or too long ago, for a group whose members consume
        by broadcasting, and for a single queue that the group has never read.
        """
        with self._access.dispatched() as connection:
            return offset_reset.reset_offsets(
                connection,
                group,
                topic,
                to,
                queue_id=queue_id,
                reason=reason,
                dry_run=dry_run,
                actor=actor or self._access.actor,
            )

    def clone(
        self,
        source: str,
        target: str,
        topics: Collection[str] = (),
        *,
        force: bool = False,
        reason: str = "",
        dry_run: bool = False,
        actor: str | None = None,
    ) -> list[OffsetChange]:
        """Let group `target` continue at the offsets of group `source`, in these topics or all but the retry topic.

        Creates `target` if it does not exist. With `dry_run` nothing changes.
        Raises GroupNotFound, TopicNotFound, NameInvalid; GroupInUse while `target` has live members, unless `force` is
        set; ParameterInvalid for a topic that `source` has never read, if `source` and `target` are the same group, and
        for members that consume by broadcasting.
        """
        with self._access.connected() as connection:
            return offset_reset.clone_offsets(
                connection,
                source,
                target,
                topics,
                force=force,
                reason=reason,
                dry_run=dry_run,
                actor=actor or self._access.actor,
            )
