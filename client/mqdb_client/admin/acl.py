"""Access control, as administrators see it. RocketMQ: mqadmin createAcl, deleteAcl, listAcl."""

from collections.abc import Collection, Mapping

from mqdb.broker import acl
from mqdb.broker.acl import RightChange, Rights
from mqdb.errors import ParameterInvalid
from mqdb.store.acl import Resource, Right, held, is_allowed, list_rights
from mqdb_client.admin.subject import Subject


class Acl(Subject):
    """The rights of the roles that do not own the broker.

    A topic is given as a name, or as a prefix that ends in `*` and also covers topics created later. A group is given
    as a name; `operate_group` and `admin_group` also take a prefix.
    """

    def grant(
        self,
        principal: str,
        *,
        send: Collection[str] = (),
        read: Collection[str] = (),
        group: Collection[str] = (),
        operate: Collection[str] = (),
        operate_group: Collection[str] = (),
        admin: Collection[str] = (),
        admin_group: Collection[str] = (),
        namespace: str | None = None,
        external: bool = False,
        create: bool = False,
        actor: str | None = None,
    ) -> list[Resource]:
        """Grant rights to a role: send to topics, read topics, be a member of groups, operate and administer both.

        Returns the new rights. With `create`, a missing role is created; it can log in and has no password. With a
        `namespace`, all given names belong to that namespace: the role uses the name `orders` for `shop%orders`, and
        has no rights outside the namespace. An `external` principal is not a role; it is for programs that call
        `allows`.

        Raises NameInvalid for an invalid name, a system topic, a group's own topics and the reply topic;
        ParameterInvalid if the role does not exist or has rights in another namespace; StorageRefused if the owner of
        the broker may not create roles.
        """
        rights = Rights(
            send, read, group, operate, operate_group, admin, admin_group, namespace=namespace, external=external
        )
        with self._access.connected() as connection:
            return acl.grant(connection, principal, rights, create=create, actor=actor or self._access.actor)

    def revoke(
        self,
        principal: str,
        *,
        send: Collection[str] | None = None,
        read: Collection[str] | None = None,
        group: Collection[str] | None = None,
        operate: Collection[str] | None = None,
        operate_group: Collection[str] | None = None,
        admin: Collection[str] | None = None,
        admin_group: Collection[str] | None = None,
        actor: str | None = None,
    ) -> list[Resource]:
        """Revoke rights, named as they were granted, or all rights if every argument is None; returns these rights.

        Raises ParameterInvalid for a right that was not granted.
        """
        given = (send, read, group, operate, operate_group, admin, admin_group)
        named = None if all(each is None for each in given) else Rights(*(each or () for each in given))
        with self._access.connected() as connection:
            return acl.revoke(connection, principal, named, actor=actor or self._access.actor)

    def set_secret(self, principal: str, secret: str | None, *, actor: str | None = None) -> None:
        """Set the secret that an external principal uses for signatures in RocketMQ's clients; None removes it.

        The principal is the AccessKey of the clients. Raises ParameterInvalid for a secret of fewer than 7 characters,
        for a role, and for a principal without any rights.
        """
        with self._access.connected() as connection:
            acl.set_secret(connection, principal, secret, actor=actor or self._access.actor)

    def apply(
        self, wanted: Mapping[str, Rights], *, dry_run: bool = False, actor: str | None = None
    ) -> list[RightChange]:
        """Give each of these roles exactly the listed rights, in one transaction; returns the changes.

        A second call with the same rights changes nothing. A role that is not named keeps its rights. With `dry_run`
        nothing changes. Raises the errors of `grant`.
        """
        with self._access.connected() as connection:
            return acl.apply(connection, wanted, dry_run=dry_run, actor=actor or self._access.actor)

    def allows(
        self,
        principal: str,
        *,
        send: str | None = None,
        read: str | None = None,
        group: str | None = None,
        operate: str | None = None,
        operate_group: str | None = None,
        admin: str | None = None,
        admin_group: str | None = None,
    ) -> bool:
        """Whether a role has all of these rights. Topics and groups need not exist.

        The owner of the broker has all rights.
        """
        given = (send, read, group, operate, operate_group, admin, admin_group)
        wanted = Rights(*([name] if name is not None else [] for name in given)).resources()
        if not wanted:
            raise ParameterInvalid("send", send, "name a topic or a group")
        with self._access.connected() as connection:
            return all(is_allowed(connection, principal, each) for each in wanted)

    def held(self, principal: str, wanted: Collection[Resource]) -> set[Resource]:
        """The subset of these rights that a principal has.

        Each name includes its namespace, even if the principal has a namespace. The result is empty for a principal
        without any grants, even if a role with the same name owns the broker. Raises ParameterInvalid unless the caller
        owns the broker.
        """
        with self._access.connected() as connection:
            return held(connection, principal, wanted)

    def list(self, principal: str | None = None, *, topic: str | None = None, group: str | None = None) -> list[Right]:
        """List rights by principal, optionally only the rights of one principal, on one topic or on one group."""
        with self._access.connected() as connection:
            return list_rights(connection, principal, topic, group)
