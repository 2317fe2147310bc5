"""Clients: the members of groups, and the times of their last heartbeats.

A client consists of a row for each of its groups, a heartbeat, and the presence lock of its LISTEN connection, whose
key is in `presence`. The presence lock is taken first: a client without a lock has lost its connection. Another role
can see the key in pg_locks and take the lock once the client has lost it, but the client's next connection draws
another key.
RocketMQ: ConsumerManager, ProducerManager.
In SQL: `mqdb/sql/clients/leave_group.sql`, `mqdb/sql/clients/reap_clients.sql`, `mqdb/sql/consumers/set_offsets.sql`.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Text,
    and_,
    case,
    cast,
    column,
    func,
    null,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.sql import Select

from mqdb.common.group import ConsumeMode, MessageModel
from mqdb.selector.subscription import SubscriptionData
from mqdb.store import locks
from mqdb.store.engine import driver, translates
from mqdb.store.fragments import full_group
from mqdb.store.tables import client, presence

#: The NOTIFY channel for changes in a group (`m:` and its name), and for requests to a client (`c:` and its id).
CHANNEL = "mqdb"

#: The NOTIFY channel for arrivals (`a:` and queue keys, or `a:*`), perhaps hundreds per second. Producers do not listen
#: to it.
ARRIVALS_CHANNEL = "mqdb_arrivals"


_client = tuple_(client.c.client_id, client.c.principal)


class ClientKind(StrEnum):
    """The kind of a client in its group."""

    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class Registration(NamedTuple):
    """A client in a group.

    A renewal re-registers a client that was in the group before and that its broker has lost.
    """

    client_id: str
    kind: ClientKind
    group: str
    version: str
    message_model: MessageModel = MessageModel.CLUSTERING
    language: str = "PYTHON"
    subscriptions: Sequence[SubscriptionData] = ()
    subscription_version: int = 0
    is_renewal: bool = False
    checks_transactions: bool = False
    consume_mode: ConsumeMode | None = ConsumeMode.PULL
    """None for a consumer that adopts the mode of its group."""


def announce(connection: Connection, client_id: str) -> bool:
    """Make this session a client's connection until the session ends; False while the client has another one."""
    key = locks.take_presence(connection)
    # If the row exists, PostgreSQL locks it before it checks who holds the key.
    announced = (
        insert(presence)
        .values(client_id=client_id, lock_key=key)
        .on_conflict_do_update(constraint="presence_pkey", set_={"lock_key": key}, where=~_is_connected())
        .returning(presence.c.lock_key)
    )
    is_mine = connection.scalar(announced) is not None
    if not is_mine:
        locks.release_presence(connection, key)
    return is_mine


def add(connection: Connection, registration: Registration) -> None:
    """Insert or renew the row of a client."""
    row: dict[str, Any] = {
        "client_id": registration.client_id,
        "kind": registration.kind,
        # A producer group is only a name used by its role, also in half messages, and does not belong to a namespace.
        "group_name": registration.group
        if registration.kind is ClientKind.CONSUMER
        else cast(registration.group, Text),
        "message_model": registration.message_model,
        "language": registration.language,
        "version": registration.version,
        "checks_transactions": registration.checks_transactions,
    }
    renewed = {name: row[name] for name in ("version", "checks_transactions")}
    renewed["heartbeat_at"] = func.mqdb.now()
    connection.execute(insert(client).values(row).on_conflict_do_update(constraint="client_pkey", set_=renewed))


def adopt(connection: Connection, client_ids: Sequence[str], host: str) -> bool:
    """Count clients as connected while `host`, another client of this role, is connected; replaces their previous host.

    The host is a process through which other clients connect. Returns False if the host has no presence.
    """
    of_host = presence.c.client_id == host, presence.c.principal == text("session_user")
    rows = select(func.unnest(cast(list(client_ids), ARRAY(Text))), presence.c.lock_key).where(*of_host)
    adopted = insert(presence).from_select(["client_id", "lock_key"], rows)
    adopting = adopted.on_conflict_do_update(
        constraint="presence_pkey", set_={"lock_key": adopted.excluded.lock_key}
    ).returning(presence.c.client_id)
    return bool(connection.scalars(adopting).all())


def is_guest(connection: Connection, client_id: str, host: str) -> bool:
    """Whether a client still counts as connected through this host, and not through another host."""
    own = presence.alias()
    through = select(own.c.lock_key).where(own.c.client_id == host, own.c.principal == text("session_user"))
    guest = select(presence.c.client_id).where(
        presence.c.client_id == client_id,
        presence.c.principal == text("session_user"),
        presence.c.lock_key == through.scalar_subquery(),
    )
    return connection.scalar(guest) is not None


def beat(connection: Connection, client_ids: Sequence[str]) -> set[str]:
    """Renew the heartbeats of clients in all their groups; returns the known clients.

    A client of another role with the same id is not affected, and this statement does not wait for its row locks.
    """
    own = client.c.client_id == func.any(cast(list(client_ids), ARRAY(Text)))
    of_role = client.c.principal == cast(text("session_user"), Text)
    beaten = update(client).where(own, of_role).values(heartbeat_at=func.mqdb.now()).returning(client.c.client_id)
    return set(connection.scalars(beaten))


def remove(connection: Connection, client_id: str, group: str, kind: ClientKind) -> None:
    """Remove a client from a group; queues that a consumer owns or has locked there become free."""
    connection.execute(select(func.mqdb.leave_group(group, client_id, kind)))


@translates
def members_of(connection: Connection, group: str) -> list[str]:
    """The consumers of a group, sorted by client id."""
    of_group = and_(client.c.group_name == group, client.c.kind == ClientKind.CONSUMER)
    return list(connection.scalars(select(client.c.client_id).where(of_group).order_by(client.c.client_id)))


def live_models(connection: Connection, group: str, but: str) -> dict[str, MessageModel]:
    """The consumers of a group, except one, whose connections are open, with their message models."""
    rows = connection.execute(
        select(client.c.client_id, client.c.message_model).where(
            client.c.group_name == group,
            client.c.kind == ClientKind.CONSUMER,
            client.c.client_id != but,
            _client.in_(_connected()),
        )
    )
    return {row.client_id: MessageModel(row.message_model) for row in rows}


def live_members(connection: Connection, group: str) -> dict[str, MessageModel]:
    """The live consumers of a group and their message models, for a role that operates or administers the group."""
    columns = column("client_id", Text), column("message_model", Text)
    live = func.mqdb.live_members(cast(group, Text)).table_valued(*columns).render_derived("live")
    return {row.client_id: MessageModel(row.message_model) for row in connection.execute(select(live))}


def live_principals(connection: Connection, client_id: str) -> list[str]:
    """The roles that have a registered client with this id and an open connection."""
    its_rows = select(client.c.principal).where(client.c.client_id == client_id, _client.in_(_connected()))
    return sorted(connection.scalars(its_rows.distinct()))


def live_checkers(connection: Connection, groups: Sequence[str]) -> dict[tuple[str, str | None], list[str]]:
    """The producers with open connections that can be asked about transactions of these groups, sorted.

    The result is keyed by group and role; the role is None for the owner of the broker and the members of its role.
    Groups without such producers are left out.
    """
    of_role = case((func.mqdb.is_owner(client.c.principal), null()), else_=client.c.principal)
    its_group = cast(client.c.group_name, Text)
    asked = select(its_group, of_role, client.c.client_id).where(
        its_group.in_(groups),
        client.c.kind == ClientKind.PRODUCER,
        client.c.checks_transactions,
        _client.in_(_connected()),
    )
    found: dict[tuple[str, str | None], list[str]] = {}
    for group, principal, client_id in connection.execute(asked.order_by(its_group, client.c.client_id)):
        found.setdefault((group, principal), []).append(client_id)
    return found


def count_consumers(connection: Connection) -> int:
    """The number of processes that consume in any group, and therefore listen for notifications.

    The dispatcher calls this every second.
    """
    row = driver(connection).execute(_COUNT_CONSUMERS).fetchone()
    assert row is not None
    return int(row[0])


#: SQL text, because SQLAlchemy took longer to compile it than PostgreSQL to answer, while messages waited.
_COUNT_CONSUMERS: Final = f"SELECT count(DISTINCT client_id) FROM mqdb.client WHERE kind = '{ClientKind.CONSUMER}'"


class ClientCount(NamedTuple):
    """The number of clients of a kind, group, language and version."""

    kind: str
    group: str
    language: str
    version: str
    clients: int


def count_all(connection: Connection) -> list[ClientCount]:
    """The numbers of all registered clients. A client in two groups is counted in both."""
    columns = client.c.kind, client.c.group_name, client.c.language, client.c.version
    return [ClientCount(*row) for row in connection.execute(select(*columns, func.count()).group_by(*columns))]


def reap(connection: Connection, expiry: timedelta) -> list[str]:
    """Remove clients that have been silent for `expiry` or whose presence lock is gone; returns their groups.

    The groups are notified. This is one statement, which does not wait for a synchronous standby; it runs every second.
    """
    return [group for group, _ in driver(connection).execute(_REAP, {"expiry": expiry})]


_REAP: Final = f"""
    SELECT left_group, pg_notify('{CHANNEL}', 'm:' || mqdb.full_group(left_group))
    FROM set_config('synchronous_commit', 'local', true), LATERAL mqdb.reap_clients(%(expiry)s) AS left_group"""


def notify_group(connection: Connection, group: str) -> None:
    """Notify all clients, when the transaction commits, that the members of a group or their queues have changed."""
    connection.execute(select(func.pg_notify(CHANNEL, func.concat("m:", full_group(group)))))


def _connected() -> Select[tuple[str, str]]:
    """The ids and roles of the clients whose connections are open."""
    return select(presence.c.client_id, presence.c.principal).where(_is_connected())


def _is_connected() -> ColumnElement[bool]:
    return func.mqdb.is_present(presence.c.lock_key, presence.c.principal, type_=Boolean)
