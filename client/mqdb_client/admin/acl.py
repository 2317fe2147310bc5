"""Access control, as administrators see it. RocketMQ: mqadmin createAcl, deleteAcl, listAcl."""

from collections.abc import Collection, Mapping

from mqdb.broker import acl
from mqdb.broker.acl import RightChange
from mqdb.store.acl import Access, Right, is_allowed, list_rights
from mqdb_client.admin.broker_access import BrokerAccess


class Acl:
    """The rights of the roles that do not own the broker."""

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access

    def grant(self, principal: str, *, send: Collection[str], actor: str | None = None) -> list[str]:
        """Let a role send to topics by `mqdb.send`; returns those on which the right is new.

        A topic is a name, or a prefix that ends in `*`, which also covers topics that are made later.
        Raises NameInvalid, also for a topic of the broker, of a group or of replies, and ParameterInvalid for a role
        that is not there.
        """
        with self._access.connected() as connection:
            return acl.grant(connection, principal, send, actor=actor or self._access.actor)

    def revoke(self, principal: str, *, send: Collection[str] | None = None, actor: str | None = None) -> list[str]:
        """Take rights away, as they were granted, all of them with None; returns the topics on which there was one.

        Raises ParameterInvalid for a right that is not there.
        """
        with self._access.connected() as connection:
            return acl.revoke(connection, principal, send, actor=actor or self._access.actor)

    def apply(
        self, send: Mapping[str, Collection[str]], *, dry_run: bool = False, actor: str | None = None
    ) -> list[RightChange]:
        """Let each of these roles send to these topics and no others, in one transaction; returns what that changes.

        A second time nothing changes. A role that is not named keeps what it has. With `dry_run` nothing happens.
        Raises what `grant` raises.
        """
        with self._access.connected() as connection:
            return acl.apply(connection, send, dry_run=dry_run, actor=actor or self._access.actor)

    def allows(self, principal: str, *, send: str) -> bool:
        """Whether a role may send to a topic, which need not exist. The owner of the broker may send to each."""
        with self._access.connected() as connection:
            return is_allowed(connection, principal, Access.SEND, send)

    def list(self, principal: str | None = None, topic: str | None = None) -> list[Right]:
        """Rights by principal and topic: of one principal, and those that cover a topic."""
        with self._access.connected() as connection:
            return list_rights(connection, principal, topic)
