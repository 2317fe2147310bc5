"""Replies: their topic, their addresses, and the ways to read and send them.

All requesters of a cluster share a topic, which no right covers. The owner of the broker, and the members of its role,
read and write it like any other topic. Other roles use database functions, which return only a role's own replies, and
send a reply only to the requester of a message that the role may read (`mqdb/sql/log/replies.sql`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import Connection, func, select

from mqdb.broker.consumers.horizon import Horizon
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus, pull, verdict
from mqdb.broker.topics.route import find_or_create_reply_topic
from mqdb.common.received_message import ReceivedMessage
from mqdb.selector.tags import TagExpression
from mqdb.store import acl
from mqdb.store.engine import driver, translates
from mqdb.store.topics import topics
from mqdb.store.topics.topics import TopicRoute


class Reply(NamedTuple):
    """A reply to a request, which is identified by its position and id."""

    request_pos: int
    request_id: UUID
    msg_id: UUID
    born_time: datetime
    born_host: str
    keys: str | None
    properties: Mapping[str, str]
    body: bytes
    flag: int


@translates
def find_topic(connection: Connection, cluster_name: str) -> TopicRoute:
    """The topic for replies, which is created if it does not exist.

    Raises NameInvalid, and AccessDenied for a role without rights.
    """
    if not acl.is_guest(connection):
        return find_or_create_reply_topic(connection, cluster_name)
    name: str = connection.execute(select(func.mqdb.reply_topic())).scalar_one()
    route = topics.find_topic(connection, name)
    if route is not None:
        return route
    connection.execute(select(func.mqdb.make_reply_topic()))
    return topics.existing_topic(connection, name)


@translates
def address_of(connection: Connection, client_id: str) -> str:
    """The address of a client for replies: the property REPLY_TO_CLIENT of its requests."""
    if not acl.is_guest(connection):
        return client_id
    address: str = connection.execute(select(func.mqdb.reply_address(client_id))).scalar_one()
    return address


@translates
def read(
    connection: Connection,
    places: Sequence[PullRequest],
    client_id: str,
    *,
    filter: TagExpression,
    scan_limit: int,
    horizon: Horizon,
) -> tuple[list[PullResult], Horizon]:
    """The replies for a client, like the result of `pull`; `filter` selects its address."""
    if not acl.is_guest(connection):
        return pull(connection, places, filter=filter, scan_limit=scan_limit, horizon=horizon)
    found = (_read_own(connection, place, client_id) for place in places)
    return [result for result in found if result is not None], horizon


_OWN_REPLIES: Final = """
    SELECT min_offset, max_offset, next_offset, queue_offset, log_pos, msg_id, tags, keys, properties, body,
           (extract(epoch FROM born_time - timestamptz '2000-01-01 00:00+00') * 1000000)::bigint,
           (extract(epoch FROM store_time - timestamptz '2000-01-01 00:00+00') * 1000000)::bigint,
           born_host, reconsume_times, flag, sys_flag
    FROM mqdb.own_replies(%(client_id)s, %(queue_key)s::integer, %(first_offset)s::bigint, %(history)s::bigint)"""


def _read_own(connection: Connection, place: PullRequest, client_id: str) -> PullResult | None:
    """The replies for a client in a queue; None if the queue is gone or from another history."""
    values = {
        "client_id": client_id,
        "queue_key": place.queue_key,
        "first_offset": place.offset,
        "history": place.history,
    }
    rows = driver(connection).execute(_OWN_REPLIES, values).fetchall()
    if not rows:
        return None
    minimum, maximum, next_offset = rows[-1][:3]
    messages = [_message(place, row, minimum, maximum) for row in rows if row[3] is not None]
    status = PullStatus.FOUND if messages else PullStatus.NO_MATCHED_MSG
    if not minimum <= place.offset < maximum:
        status, next_offset = verdict(place.offset, minimum, maximum)
    return PullResult(place, status, next_offset, minimum, maximum, place.segment, messages)


def _message(place: PullRequest, row: tuple[Any, ...], minimum: int, maximum: int) -> ReceivedMessage:
    values: list[Any] = [place.queue, *row[3:], minimum, maximum]
    return ReceivedMessage(*values)


_REPLY: Final = """
    SELECT log_pos, queue_id
    FROM mqdb.reply(%(request_pos)s::bigint, %(request_id)s, %(msg_id)s, %(born_time)s, %(born_host)s, %(keys)s,
                    %(properties)s, %(body)s::bytea, %(flag)s::integer)"""


@translates
def send(connection: Connection, reply: Reply) -> tuple[int, int]:
    """Send a reply for a role that does not own the broker; returns its position and queue number.

    Raises ReplyImpossible unless the role may read the request as a member of a group, and the errors of the reply
    itself.
    """
    values = reply._asdict() | {"properties": Jsonb(dict(reply.properties))}
    row = driver(connection).execute(_REPLY, values).fetchone()
    assert row is not None
    return row
