"""Topics, as administrators see them. RocketMQ: mqadmin updateTopic, topicList, topicStatus, deleteTopic."""

from mqdb.broker.topics import topics as admin
from mqdb.broker.topics.topics import TopicDetails, Unread
from mqdb.common.topic import MessageType, Perm, TopicConfig
from mqdb.errors import NothingToDelete, TopicNotFound
from mqdb.store.topics.topic_uses import TopicUses
from mqdb.store.topics.topics import list_topics
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import FLAG


class Topics(Subject):
    """The topics of a broker."""

    def create(
        self,
        name: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        message_type: MessageType = MessageType.NORMAL,
        actor: str | None = None,
    ) -> TopicConfig:
        """Create a topic. Creating it again with the same settings changes nothing.

        `queues` is the number of queues to read and to write; `read_queues` and `write_queues` override one side.
        `perm` is a sum of members of Perm.
        Raises NameInvalid, ParameterInvalid, and TopicExists if the topic exists with other settings.
        """
        FLAG.check("order", order)
        read_queue_nums = queues if read_queues is None else read_queues
        write_queue_nums = queues if write_queues is None else write_queues
        # It makes a Perm from the number.
        config = TopicConfig(name, read_queue_nums, write_queue_nums, perm, order, message_type)  # type: ignore[arg-type]
        with self._access.connected() as connection:
            admin.create_topic(connection, config, actor=actor or self._access.actor)
        return config

    def show(self, name: str) -> TopicDetails:
        """Settings, queues and readers of a topic. Raises TopicNotFound."""
        with self._access.dispatched() as connection:
            return admin.topic_details(connection, name)

    def update(
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        message_type: MessageType | None = None,
        actor: str | None = None,
    ) -> TopicConfig:
        """Change the given settings; returns the new configuration.

        If the number of queues is lowered, the messages of hidden queues stay, and become readable again if the number
        is raised later. `unread` lists the hidden messages.
        Raises TopicNotFound, NameInvalid for a system topic, and ParameterInvalid for a value out of bounds, or if no
        setting is given.
        """
        with self._access.connected() as connection:
            changed = admin.update_topic(
                connection,
                name,
                read_queue_nums=queues if read_queues is None else read_queues,
                write_queue_nums=queues if write_queues is None else write_queues,
                perm=perm,
                order=order,
                message_type=message_type,
                actor=actor or self._access.actor,
            )
        return changed.config

    def unread(self, name: str) -> list[Unread]:
        """The messages in queues that are no longer read, for each group that has not consumed all of them.

        Raises TopicNotFound.
        """
        with self._access.dispatched() as connection:
            return admin.unread_messages(connection, name)

    def uses(self, name: str) -> TopicUses:
        """The crons, scheduled messages and half messages that use a topic.

        Raises NothingToDelete, which is a TopicNotFound. Every sent message counts, even if no `mqdb serve` runs.
        """
        with self._access.dispatched() as connection:
            try:
                return admin.find_uses(connection, name)
            except TopicNotFound as error:
                raise NothingToDelete(name) from error

    def delete(self, name: str, *, force: bool = False, actor: str | None = None) -> TopicUses:
        """Delete a topic with its messages and all groups' offsets in it; returns the uses that ended.

        Raises TopicInUse while the topic is in use. With `force` these uses end: crons are removed, half messages are
        rolled back, and waiting messages are not delivered. Raises NothingToDelete, NameInvalid.
        """
        with self._access.dispatched() as connection:
            gone = admin.delete_topic(connection, name, force=force, actor=actor or self._access.actor)
        if gone is None:
            raise NothingToDelete(name)
        return gone

    def list(self) -> list[TopicConfig]:
        """All topics by name, including the broker's own topics and the topics of groups."""
        with self._access.connected() as connection:
            return [found.config for found in list_topics(connection)]
