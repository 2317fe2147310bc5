"""Consumer groups, as administrators see them. RocketMQ: mqadmin updateSubGroup, deleteSubGroup, consumerProgress."""

from collections.abc import Sequence
from datetime import timedelta

from mqdb.broker.consumers import groups
from mqdb.broker.consumers.groups import GroupDetails
from mqdb.common.group import ConsumeFromWhere, ConsumeMode
from mqdb.store.consumers.groups import GroupSettings, GroupSummary, TopicLag, list_groups
from mqdb.store.consumers.waiting_retries import RetryStep
from mqdb_client.admin.subject import Subject


class Groups(Subject):
    """The consumer groups of a broker."""

    def show(self, name: str, topic: str | None = None) -> GroupDetails:
        """The settings, subscriptions, members and offsets of a group, for one topic or for all.

        Raises GroupNotFound.
        """
        with self._access.dispatched() as connection:
            return groups.show_group(connection, name, topic)

    def topics(self, name: str) -> list[TopicLag]:
        """The lag of a group by topic. Cheaper than `show`. Raises GroupNotFound."""
        with self._access.dispatched() as connection:
            return groups.show_topics(connection, name)

    def retries(self, name: str) -> list[RetryStep]:
        """The failed messages of a group that wait for a retry, by the number of the retry. Raises GroupNotFound.

        The cost grows with the number of all messages waiting in delay levels, and with the number of retries among the
        timers.
        """
        with self._access.dispatched() as connection:
            return groups.show_retries(connection, name)

    def update(
        self,
        name: str,
        *,
        consume_enable: bool | None = None,
        consume_broadcast_enable: bool | None = None,
        retry_queue_nums: int | None = None,
        retry_max_times: int | None = None,
        consume_mode: ConsumeMode | None = None,
        consume_message_orderly: bool | None = None,
        retry_delays: Sequence[timedelta] | None = None,
        consume_from_where: ConsumeFromWhere | None = None,
        actor: str | None = None,
    ) -> GroupSettings:
        """Change the given settings; returns all settings. A missing group is created.

        Members follow a change of `consume_mode`. `retry_delays` are the delays after a message has failed once, twice,
        and so on; the last delay repeats. If the list is empty, the delay levels apply. `consume_from_where` is the
        place, LAST_OFFSET or FIRST_OFFSET, at which consumers start in a topic if they do not specify one. Raises
        NameInvalid, ParameterInvalid.
        """
        with self._access.connected() as connection:
            return groups.update_group(
                connection,
                name,
                consume_enable=consume_enable,
                consume_broadcast_enable=consume_broadcast_enable,
                retry_queue_nums=retry_queue_nums,
                retry_max_times=retry_max_times,
                consume_mode=consume_mode,
                consume_message_orderly=consume_message_orderly,
                retry_delays=retry_delays,
                consume_from_where=consume_from_where,
                actor=actor or self._access.actor,
            )

    def delete(self, name: str, *, with_topics: bool = False, actor: str | None = None) -> list[str]:
        """Delete a group with its offsets and subscriptions; returns the topics that were deleted with it.

        `with_topics` also deletes the group's retry topic and DLQ, with all their messages.
        Raises GroupNotFound; GroupInUse while the group has live members.
        """
        with self._access.connected() as connection:
            return groups.delete_group(connection, name, with_topics=with_topics, actor=actor or self._access.actor)

    def list(self) -> list[GroupSummary]:
        """All groups by name, each with its lag."""
        with self._access.dispatched() as connection:
            return list_groups(connection)
