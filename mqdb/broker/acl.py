"""Access control: who may send to which topics. RocketMQ: ACL 2.0, mqadmin createAcl, deleteAcl, listAcl.

A principal is a login role of PostgreSQL, which authenticates it. What it has no right to is denied. The owner of the
schema, and who is a member of its role, is asked nothing.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.common.topic import REPLY_SUFFIX, check_topic_name, is_group_topic, is_system_topic
from mqdb.errors import NameInvalid, ParameterInvalid
from mqdb.store import acl, operations
from mqdb.store.acl import Access
from mqdb.store.engine import transaction, translates
from mqdb.store.operations import Verb


class RightChange(NamedTuple):
    """What `apply` does to a right SEND, or would."""

    principal: str
    topic: str
    is_granted: bool
    """False: it is taken away."""


@translates
def grant(connection: Connection, principal: str, send: Collection[str], *, actor: str | None = None) -> list[str]:
    """Let a role send to topics; returns those that it could not send to before. Again: nothing changes.

    A topic is a name, or a prefix that ends in *, which also covers topics that are made later. None covers a topic of
    the broker, of a group or of replies. Raises NameInvalid, and ParameterInvalid for a role that is not there.
    """
    for topic in send:
        _check_resource(topic)
    if not send:
        raise ParameterInvalid("send", send, "give at least one topic")
    with transaction(connection):
        try:
            acl.open_schema(connection, principal)
        except acl.NO_SUCH_ROLE as error:
            raise ParameterInvalid(
                "principal", principal, "is no role of this server; CREATE ROLE makes one"
            ) from error
        new = acl.add(connection, principal, Access.SEND, send)
        if new:
            _note(connection, Verb.ACL_GRANT, principal, new, actor)
    return new


@translates
def revoke(
    connection: Connection, principal: str, send: Collection[str] | None, *, actor: str | None = None
) -> list[str]:
    """Take the right to send away, as it was granted, or on all topics with None; returns where there was one.

    Sends that are under way end as they would have. Raises ParameterInvalid for a right that is not there.
    """
    with transaction(connection):
        gone = acl.remove(connection, principal, Access.SEND, send)
        for topic in send or ():
            if topic not in gone:
                raise ParameterInvalid("send", topic, f"{principal!r} has no such right; see: mqdb acl list")
        if gone:
            _note(connection, Verb.ACL_REVOKE, principal, gone, actor)
        if not acl.list_rights(connection, principal):
            acl.close_schema(connection, principal)
    return gone


@translates
def apply(
    connection: Connection, wanted: Mapping[str, Collection[str]], *, dry_run: bool = False, actor: str | None = None
) -> list[RightChange]:
    """Give each of these principals the right to send to these topics and no others; returns what that changes.

    All in one transaction. A second time nothing changes, and who is not named keeps what it has. With `dry_run`
    nothing happens. Raises what `grant` raises.
    """
    for topics in wanted.values():
        for topic in topics:
            _check_resource(topic)
    changes: list[RightChange] = []
    with transaction(connection):
        for principal, topics in sorted(wanted.items()):
            had = {right.topic for right in acl.list_rights(connection, principal)}
            new, gone = sorted(set(topics) - had), sorted(had - set(topics))
            changes += [RightChange(principal, topic, True) for topic in new]
            changes += [RightChange(principal, topic, False) for topic in gone]
            if new and not dry_run:
                grant(connection, principal, new, actor=actor)
            if gone and not dry_run:
                revoke(connection, principal, gone, actor=actor)
    return changes


def _check_resource(topic: str) -> None:
    """Raises NameInvalid unless a right may name it: a topic of users, or a prefix that ends in *."""
    if topic == "*":
        return
    name = topic.removesuffix("*")
    check_topic_name(name)
    if is_system_topic(name) or is_group_topic(name) or name.endswith(REPLY_SUFFIX):
        raise NameInvalid("topic", topic, "belongs to the broker, a group or replies; no right covers it")


def _note(connection: Connection, verb: Verb, principal: str, topics: list[str], actor: str | None) -> None:
    operations.record(
        connection, verb, actor, topics=topics, object=f"{Access.SEND} of {principal}", records=len(topics)
    )
