"""Rights: rows of mqdb.acl, and the only function that evaluates them (`mqdb/sql/acl/is_allowed.sql`)."""

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Text,
    and_,
    cast,
    delete,
    exists,
    func,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql.functions import Function
from sqlalchemy.sql.selectable import TableValuedAlias

from mqdb.store import tables
from mqdb.store.engine import driver, translates
from mqdb.store.tables import acl
from mqdb.store.tables import principal as principals


class Access(StrEnum):
    """The actions that a right allows on a resource. RocketMQ: Action."""

    SEND = "SEND"
    READ = "READ"
    """Read messages of a topic; or be a member of a group, with access to its offsets, retries and dead letters."""
    OPERATE = "OPERATE"
    """The work of an operator: redrive, reset, recall, resolve, manage crons. Reading messages is not included."""
    ADMIN = "ADMIN"
    """Create, change and delete topics or groups."""


class ResourceType(StrEnum):
    """The type of the resource of a right. RocketMQ: ResourceType."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"


class Resource(NamedTuple):
    """An action and its resource: SEND, READ, OPERATE or ADMIN a topic; READ, OPERATE or ADMIN a group.

    A name may be a prefix that ends in *, which stands for all names with this prefix. Only members need the complete
    name of their group.
    """

    access: Access
    resource_type: ResourceType
    name: str


class Right(NamedTuple):
    """A right of a principal."""

    principal: str
    resource: Resource
    granted_at: datetime


#: The keys in `Connection.info`.
_IS_GUEST: Final = "mqdb_is_guest"
_NAMESPACE: Final = "mqdb_namespace"

_RESOURCE: Final = (acl.c.access, acl.c.resource_type, acl.c.resource)


@translates
def list_rights(
    connection: Connection, principal: str | None = None, topic: str | None = None, group: str | None = None
) -> list[Right]:
    """Rights sorted by principal and resource: those of a principal, that cover a topic, that are on a group, or all.

    Names in the result are complete. If a principal is given, the arguments name topics and groups as that principal
    does.
    """
    wanted = select(acl.c.principal, acl.c.granted_at, *_RESOURCE)
    if principal is not None:
        wanted = wanted.where(acl.c.principal == principal)
    namespace = select(principals.c.namespace).where(principals.c.principal == principal).scalar_subquery()
    if topic is not None:
        name = func.mqdb.with_namespace(topic, ResourceType.TOPIC, namespace)
        wanted = wanted.where(func.mqdb.is_covered(name, acl.c.resource_type, acl.c.resource))
    if group is not None:
        name = func.mqdb.with_namespace(group, ResourceType.GROUP, namespace)
        wanted = wanted.where(acl.c.resource_type == ResourceType.GROUP, func.mqdb.is_named(name, acl.c.resource))
    return sorted(Right(name, _resource(*columns), at) for name, at, *columns in connection.execute(wanted))


@translates
def is_allowed(connection: Connection, principal: str, wanted: Resource) -> bool:
    """Whether a principal has a right. The owner of the schema and the members of its role have all rights."""
    allowed: bool = connection.scalars(select(func.mqdb.is_allowed(principal, *wanted))).one()
    return allowed


@translates
def held(connection: Connection, principal: str, wanted: Collection[Resource]) -> set[Resource]:
    """The subset of these rights that a principal has. Names are complete, even if the principal has a namespace.

    A principal without grants has no rights, even if a role with its name owns the broker.
    """
    if not wanted:
        return set()
    given = _unnested(wanted)
    found = select(*given.c).where(is_held(literal(principal), *given.c))
    return {_resource(*row) for row in connection.execute(found)}


def is_held(
    principal: ColumnElement[str], access: ColumnElement[str], type_: ColumnElement[str], name: ColumnElement[str]
) -> ColumnElement[bool]:
    """A condition for a statement: whether a principal has a right, as defined by `held`."""
    its = principals.alias("its")
    namespace = select(its.c.namespace).where(its.c.principal == principal).scalar_subquery()
    granted = acl.alias("granted")
    return and_(
        exists().where(granted.c.principal == principal),
        func.mqdb.with_namespace(name, type_, namespace) == name,
        func.mqdb.is_allowed(principal, access, type_, name),
    )


@translates
def require(connection: Connection, *wanted: Resource) -> None:
    """Raise AccessDenied for the first of these rights that the current role does not have."""
    connection.execute(select(func.mqdb.check_right(*_unnested(wanted).c)))


@translates
def has(connection: Connection, wanted: Resource) -> bool:
    """Whether the current role has a right."""
    allowed: bool = connection.scalars(select(func.mqdb.is_allowed(text("session_user"), *wanted))).one()
    return allowed


def own_namespace(connection: Connection) -> str | None:
    """The namespace of the current role. PostgreSQL is queried once per connection."""
    if _NAMESPACE not in connection.info:
        connection.info[_NAMESPACE] = connection.scalar(select(tables.own_namespace.c.namespace))
    namespace: str | None = connection.info[_NAMESPACE]
    return namespace


def is_guest(connection: Connection) -> bool:
    """Whether the current role does not own the broker, so that row security decides what it sees and writes.

    PostgreSQL is queried once per connection, in AUTOCOMMIT or in the open transaction.
    """
    known: bool | None = connection.info.get(_IS_GUEST)
    if known is None:
        row = driver(connection).execute("SELECT row_security_active('mqdb.commit_log')").fetchone()
        assert row is not None
        known = connection.info[_IS_GUEST] = row[0]
    return known


class Principal(NamedTuple):
    """Whether a principal is a PostgreSQL role, and the namespace of the topics and groups that it names."""

    is_role: bool = True
    namespace: str | None = None


def find_principal(connection: Connection, name: str) -> Principal | None:
    """The row of a principal that is not a role, or has a namespace; None for a plain role."""
    columns = principals.c.is_role, principals.c.namespace
    row = connection.execute(select(*columns).where(principals.c.principal == name)).one_or_none()
    return None if row is None else Principal(*row)


def add_principal(connection: Connection, name: str, new: Principal) -> None:
    """Insert the row of a principal, in the caller's transaction."""
    connection.execute(insert(principals).values(principal=name, is_role=new.is_role, namespace=new.namespace))


def set_secret(connection: Connection, name: str, secret: str | None) -> bool:
    """Store the secret of a principal that is not a role, in the caller's transaction; False if it does not exist."""
    its = principals.c.principal == name, ~principals.c.is_role
    return bool(connection.execute(update(principals).where(*its).values(secret=secret)).rowcount)


@translates
def secrets(connection: Connection) -> dict[str, str]:
    """The secrets of all access keys, by name. Only the owner of the broker may read them."""
    rows = connection.execute(
        select(principals.c.principal, principals.c.secret).where(principals.c.secret.is_not(None))
    )
    return {row.principal: row.secret for row in rows}


def remove_principal(connection: Connection, name: str) -> None:
    """Delete the row of a principal, in the caller's transaction."""
    connection.execute(delete(principals).where(principals.c.principal == name))


def completed(connection: Connection, namespace: str | None, resources: Collection[Resource]) -> list[Resource]:
    """Resources with their complete names, in the given order."""
    if namespace is None or not resources:
        return list(resources)
    names = (func.mqdb.with_namespace(each.name, each.resource_type, namespace) for each in resources)
    whole = connection.execute(select(*names)).one()
    return [each._replace(name=name) for each, name in zip(resources, whole, strict=True)]


def add(connection: Connection, principal: str, wanted: Collection[Resource]) -> list[Resource]:
    """Grant rights, in the caller's transaction; returns those that are new."""
    rows = [
        {"principal": principal, "access": access, "resource_type": type_, "resource": name}
        for access, type_, name in dict.fromkeys(wanted)
    ]
    added = insert(acl).values(rows).on_conflict_do_nothing().returning(*_RESOURCE)
    return sorted(_resource(*row) for row in connection.execute(added))


def remove(connection: Connection, principal: str, unwanted: Collection[Resource] | None) -> list[Resource]:
    """Revoke these rights, or with None all rights, in the caller's transaction; returns the revoked rights."""
    gone = delete(acl).where(acl.c.principal == principal).returning(*_RESOURCE)
    if unwanted is not None:
        gone = gone.where(tuple_(*_RESOURCE).in_(unwanted))
    return sorted(_resource(*row) for row in connection.execute(gone))


def _resource(access: str, resource_type: str, name: str) -> Resource:
    return Resource(Access(access), ResourceType(resource_type), name)


def is_role(connection: Connection, name: str) -> bool:
    """Whether the server has a role with this name."""
    return connection.scalars(select(_role_of(name).is_not(None))).one()


def owns(connection: Connection, name: str) -> bool:
    """Whether a role owns the schema, or is a member of the role that does."""
    return connection.scalars(select(func.mqdb.is_owner(name, type_=Boolean()))).one()


def create_role(connection: Connection, principal: str) -> bool:
    """Create a login role without a password; False if a role with this name exists."""
    if is_role(connection, principal):
        return False
    driver(connection).execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(principal)))
    return True


def open_schema(connection: Connection, principal: str) -> None:
    """Let a role use the schema. Raises psycopg's UndefinedObject if the role does not exist."""
    driver(connection).execute(sql.SQL("GRANT USAGE ON SCHEMA mqdb TO {}").format(sql.Identifier(principal)))


def close_schema(connection: Connection, principal: str) -> None:
    """Undo `open_schema`, unless the role also has rights on tables, or no longer exists."""
    if not is_role(connection, principal):
        return
    if connection.scalars(text(_HAS_GRANTS).bindparams(principal=principal)).first() is not None:
        return
    driver(connection).execute(sql.SQL("REVOKE USAGE ON SCHEMA mqdb FROM {}").format(sql.Identifier(principal)))


def _unnested(wanted: Collection[Resource]) -> TableValuedAlias:
    columns = [cast(list(column), ARRAY(Text)) for column in zip(*wanted, strict=True)]
    return func.unnest(*columns).table_valued(*Resource._fields).render_derived("wanted")


def _role_of(principal: str) -> Function[Any]:
    return func.to_regrole(func.quote_ident(principal))


_HAS_GRANTS: Final = """
SELECT 1 FROM pg_class c CROSS JOIN aclexplode(c.relacl) AS a
WHERE c.relnamespace = 'mqdb'::regnamespace AND a.grantee = to_regrole(quote_ident(:principal)) LIMIT 1
"""

#: PostgreSQL's error for a missing role.
NO_SUCH_ROLE: Final = psycopg.errors.UndefinedObject
