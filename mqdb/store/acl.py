"""Rights: rows of mqdb.acl, and the one function that decides by them (`mqdb/sql/is_allowed.sql`)."""

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import psycopg
from psycopg import sql
from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from mqdb.store.engine import driver, translates
from mqdb.store.tables import acl


class Access(StrEnum):
    """What a principal may do with a resource. RocketMQ: Action."""

    SEND = "SEND"


class Right(NamedTuple):
    """A right of a principal on topics: one, or all that a prefix names which ends in *."""

    principal: str
    access: Access
    topic: str
    granted_at: datetime


_COLUMNS: Final = (acl.c.principal, acl.c.access, acl.c.resource, acl.c.granted_at)


@translates
def list_rights(connection: Connection, principal: str | None = None, topic: str | None = None) -> list[Right]:
    """Rights by principal and topic: of one principal, and those that cover a topic."""
    wanted = select(*_COLUMNS).order_by(acl.c.principal, acl.c.access, acl.c.resource)
    if principal is not None:
        wanted = wanted.where(acl.c.principal == principal)
    if topic is not None:
        wanted = wanted.where(func.mqdb.is_covered(topic, acl.c.resource))
    return [Right(name, Access(access), resource, at) for name, access, resource, at in connection.execute(wanted)]


@translates
def is_allowed(connection: Connection, principal: str, access: Access, topic: str) -> bool:
    """Whether a principal has a right on a topic. The owner of the schema and the members of its role have all."""
    allowed: bool = connection.scalars(select(func.mqdb.is_allowed(principal, access, "TOPIC", topic))).one()
    return allowed


def add(connection: Connection, principal: str, access: Access, topics: Collection[str]) -> list[str]:
    """Grant a right, in the caller's transaction; returns those topics on which it is new."""
    rows = [_row(principal, access, topic) for topic in dict.fromkeys(topics)]
    added = insert(acl).values(rows).on_conflict_do_nothing().returning(acl.c.resource)
    return sorted(connection.scalars(added))


def remove(connection: Connection, principal: str, access: Access, topics: Collection[str] | None) -> list[str]:
    """Take a right away, on all topics with None, in the caller's transaction; returns those on which there was one."""
    its_rights = acl.c.principal == principal, acl.c.access == access
    gone = delete(acl).where(*its_rights).returning(acl.c.resource)
    return sorted(connection.scalars(gone if topics is None else gone.where(acl.c.resource.in_(topics))))


def _row(principal: str, access: Access, topic: str) -> dict[str, str]:
    return {"principal": principal, "access": access, "resource_type": "TOPIC", "resource": topic}


def open_schema(connection: Connection, principal: str) -> None:
    """Let a role name the objects of the schema. Raises psycopg's UndefinedObject where there is no such role."""
    driver(connection).execute(sql.SQL("GRANT USAGE ON SCHEMA mqdb TO {}").format(sql.Identifier(principal)))


def close_schema(connection: Connection, principal: str) -> None:
    """Undo that, unless the role has rights on tables as well, or is gone."""
    exists = select(func.to_regrole(func.quote_ident(principal)).is_not(None))
    if not connection.scalars(exists).one():
        return
    if connection.scalars(select(func.has_any_column_privilege(principal, "mqdb.topic", "SELECT"))).one():
        return
    driver(connection).execute(sql.SQL("REVOKE USAGE ON SCHEMA mqdb FROM {}").format(sql.Identifier(principal)))


#: PostgreSQL's name for a role that is not there.
NO_SUCH_ROLE: Final = psycopg.errors.UndefinedObject
