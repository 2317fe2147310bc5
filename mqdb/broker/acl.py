"""Access control: rights to send, read and consume. RocketMQ: ACL 2.0, mqadmin createAcl, deleteAcl, listAcl.

A principal is a PostgreSQL login role, authenticated by PostgreSQL. Requests without a right are denied. The owner of
the schema and the members of its role need no rights. A principal may have a namespace, which contains all its rights:
`mqdb/sql/acl/namespace.sql`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, Final, NamedTuple

from sqlalchemy import Connection

from mqdb.common.argument_types import check_fields
from mqdb.common.group import check_group_name
from mqdb.common.topic import REPLY_SUFFIX, check_topic_name, is_group_topic, is_system_topic
from mqdb.errors import NameInvalid, ParameterInvalid
from mqdb.store import acl, operations
from mqdb.store.acl import Access, Principal, Resource, ResourceType
from mqdb.store.engine import steps_back, transaction, translates
from mqdb.store.operations import Verb

#: Source: PlainPermissionManager.checkPlainAccessConfig.
MIN_SECRET_LENGTH: Final = 7


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a principal.

    A topic is a name, or a prefix that ends in * and also covers topics created later. A prefix does not cover system
    topics, topics of groups and the reply topic. The same applies to groups, except that membership needs the complete
    name of the group. Raises ParameterInvalid for a value of a wrong type.
    """

    KINDS: ClassVar[Mapping[str, tuple[Access, ResourceType]]] = {
        "send": (Access.SEND, ResourceType.TOPIC),
        "read": (Access.READ, ResourceType.TOPIC),
        "group": (Access.READ, ResourceType.GROUP),
        "operate": (Access.OPERATE, ResourceType.TOPIC),
        "operate_group": (Access.OPERATE, ResourceType.GROUP),
        "admin": (Access.ADMIN, ResourceType.TOPIC),
        "admin_group": (Access.ADMIN, ResourceType.GROUP),
    }
    """The access and the resource type of each field."""

    send: Collection[str] = ()
    """Topics to which it may send."""
    read: Collection[str] = ()
    """Topics whose messages it may read."""
    group: Collection[str] = ()
    """Groups of which it may be a member, with their retries and dead letters."""
    operate: Collection[str] = ()
    """Topics for which it may recall waiting messages, resolve half messages and manage crons."""
    operate_group: Collection[str] = ()
    """Groups whose dead letters it may redrive, and whose offsets it may set."""
    admin: Collection[str] = ()
    """Topics that it may create, change and delete."""
    admin_group: Collection[str] = ()
    """Groups that it may create, change and delete."""
    namespace: str | None = field(default=None, kw_only=True)
    """The namespace of all these topics and groups: with `shop`, the principal writes `orders` for `shop%orders`."""
    external: bool = field(default=False, kw_only=True)
    """True for a principal that is not a PostgreSQL role, such as a user of the dashboard or an access key."""

    def __post_init__(self) -> None:
        check_fields(self)

    def resources(self) -> list[Resource]:
        """The resources of these rights. Raises NameInvalid for a resource to which no right can be granted."""
        resources = [Resource(*what, name) for kind, what in self.KINDS.items() for name in getattr(self, kind)]
        for each in resources:
            _check(each)
        return resources


class RightChange(NamedTuple):
    """A change of a right by `apply`, made or planned."""

    principal: str
    resource: Resource
    is_granted: bool
    """False if the right is revoked."""


# A role that creates a topic in a transaction holds a lock for which changes of rights wait. Later creations of topics
# then wait behind these.
@translates
@steps_back
def grant(
    connection: Connection, principal: str, rights: Rights, *, create: bool = False, actor: str | None = None
) -> list[Resource]:
    """Grant rights to a role; returns the new rights. Granting them twice has no effect.

    With `create` a missing role is created, which can log in and has no password. If no namespace is given, the
    principal keeps its namespace. Raises NameInvalid, including for a name outside its namespace; ParameterInvalid if
    the role does not exist, or has rights in another namespace; and StorageRefused if the owner may not create roles.
    """
    if not rights.resources():
        raise ParameterInvalid("rights", rights, "give at least one topic or group")
    with transaction(connection):
        known = acl.find_principal(connection, principal)
        its, wanted = _agree(connection, principal, known, rights)
        if its.is_role:
            if create:
                acl.create_role(connection, principal)
            try:
                acl.open_schema(connection, principal)
            except acl.NO_SUCH_ROLE as error:
                reason = "is not a role of this server; create it with CREATE ROLE"
                raise ParameterInvalid("principal", principal, reason) from error
        if known is None and its != Principal():
            acl.add_principal(connection, principal, its)
        new = acl.add(connection, principal, wanted)
        if new:
            _note(connection, Verb.ACL_GRANT, principal, new, actor)
    return new


@translates
@steps_back
def revoke(
    connection: Connection, principal: str, rights: Rights | None, *, actor: str | None = None
) -> list[Resource]:
    """Revoke rights as they were granted, or all rights with None; returns the revoked rights.

    Sends in progress are not affected. Raises ParameterInvalid for a right that was not granted.
    """
    with transaction(connection):
        its = acl.find_principal(connection, principal) or Principal()
        unwanted = None if rights is None else acl.completed(connection, its.namespace, rights.resources())
        gone = acl.remove(connection, principal, unwanted)
        for resource in unwanted or ():
            if resource not in gone:
                raise ParameterInvalid("rights", resource.name, f"{principal!r} has no such right; see: mqdb acl list")
        if gone:
            _note(connection, Verb.ACL_REVOKE, principal, gone, actor)
        if not acl.list_rights(connection, principal):
            acl.remove_principal(connection, principal)
            if its.is_role:
                acl.close_schema(connection, principal)
    return gone


@translates
def set_secret(connection: Connection, principal: str, secret: str | None, *, actor: str | None = None) -> None:
    """Set the secret of an access key; None removes it.

    Raises ParameterInvalid for a secret of fewer than 7 characters, which RocketMQ refuses, and if `principal` is not
    an external principal with a right.
    """
    if secret is not None and (len(secret) < MIN_SECRET_LENGTH or not secret.isprintable()):
        raise ParameterInvalid("secret", "***", f"needs {MIN_SECRET_LENGTH} or more printable characters")
    with transaction(connection):
        if not acl.set_secret(connection, principal, secret):
            reason = "is not an external principal; first: mqdb acl grant KEY --external --send TOPIC"
            raise ParameterInvalid("principal", principal, reason)
        operations.record(
            connection, Verb.ACL_SECRET, actor, object=principal, after={"has_secret": secret is not None}
        )


@translates
def apply(
    connection: Connection, wanted: Mapping[str, Rights], *, dry_run: bool = False, actor: str | None = None
) -> list[RightChange]:
    """Give each of these principals exactly these rights; returns the changes.

    Everything happens in one transaction. A second call changes nothing, and other principals keep their rights. With
    `dry_run` nothing is changed. Raises the errors of `grant`.
    """
    changes: list[RightChange] = []
    with transaction(connection):
        for principal, rights in sorted(wanted.items()):
            its, resources = _agree(connection, principal, acl.find_principal(connection, principal), rights)
            target, had = set(resources), {right.resource for right in acl.list_rights(connection, principal)}
            new, gone = sorted(target - had), sorted(had - target)
            changes += [RightChange(principal, resource, True) for resource in new]
            changes += [RightChange(principal, resource, False) for resource in gone]
            if new and not dry_run:
                given = replace(_rights(new), namespace=its.namespace, external=not its.is_role)
                grant(connection, principal, given, actor=actor)
            if gone and not dry_run:
                revoke(connection, principal, _rights(gone), actor=actor)
    return changes


def _agree(
    connection: Connection, principal: str, known: Principal | None, rights: Rights
) -> tuple[Principal, list[Resource]]:
    """Return the principal, known or new, and the rights with complete names. Raises NameInvalid, ParameterInvalid."""
    its = known or Principal(not rights.external, rights.namespace)
    if rights.namespace not in (None, its.namespace) or (rights.external and its.is_role):
        what = rights.namespace if rights.namespace not in (None, its.namespace) else principal
        raise ParameterInvalid("namespace", what, f"{_said(principal, its)}; first: mqdb acl revoke {principal} --all")
    if known is None and its != Principal():
        if its.namespace is not None and not re.fullmatch(_NAMESPACE, its.namespace):
            raise ParameterInvalid("namespace", its.namespace, "has 1 to 60 of the characters a-z A-Z 0-9 _ -")
        if not its.is_role and acl.is_role(connection, principal):
            raise ParameterInvalid("principal", principal, "is a role of this server")
        if acl.owns(connection, principal):
            raise ParameterInvalid("namespace", its.namespace, f"{principal!r} owns the broker, and all of its names")
        if acl.list_rights(connection, principal):
            raise ParameterInvalid("namespace", its.namespace, _said(principal, Principal()))
    wanted = acl.completed(connection, its.namespace, rights.resources())
    for each in wanted:
        _check(each)
        if its.namespace is not None and not each.name.startswith(f"{its.namespace}%"):
            raise NameInvalid(each.resource_type.lower(), each.name, f"is not in namespace {its.namespace!r}")
    return its, wanted


#: The rule of the table's CHECK.
_NAMESPACE: Final = "[a-zA-Z0-9_-]{1,60}"


def _said(principal: str, its: Principal) -> str:
    kind = "is a role" if its.is_role else "is not a role"
    return f"{principal!r} {kind}, and has rights in {its.namespace or 'no namespace'}"


def _rights(resources: Collection[Resource]) -> Rights:
    return Rights(*([each.name for each in resources if each[:2] == what] for what in Rights.KINDS.values()))


def _check(resource: Resource) -> None:
    """Raise NameInvalid unless a right can be granted on it: a user's topic, a group, or a prefix that ends in *."""
    access, type_, name = resource
    if type_ is ResourceType.GROUP and access is Access.READ:
        check_group_name(name)
        return
    if name == "*":
        return
    name = name.removesuffix("*")
    if type_ is ResourceType.GROUP:
        check_group_name(name)
        return
    check_topic_name(name)
    if is_system_topic(name) or is_group_topic(name) or name.endswith(REPLY_SUFFIX):
        raise NameInvalid("topic", resource.name, "belongs to the broker, a group or replies; no right covers it")


def _note(
    connection: Connection, verb: Verb, principal: str, resources: Collection[Resource], actor: str | None
) -> None:
    operations.record(
        connection,
        verb,
        actor,
        topics=sorted({each.name for each in resources if each.resource_type is ResourceType.TOPIC}),
        groups=sorted({each.name for each in resources if each.resource_type is ResourceType.GROUP}),
        object=principal,
        after=asdict(_rights(resources)),
        records=len(resources),
    )
