"""Membership: clients come, give signs of life, and go. Each change is announced to the group.

None of it waits for a standby: who is there is found out anew after a fail-over, and a standby that hangs must not
keep clients from coming and going.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, func, select

from mqdb.errors import IllegalState
from mqdb.store import clients
from mqdb.store.clients import ClientKind, Registration
from mqdb.store.engine import target_of, transaction, translated

#: A client silent for longer is gone. Source: ConsumerManager.CHANNEL_EXPIRED_TIMEOUT.
CLIENT_EXPIRY = timedelta(seconds=120)


def announce(connection: Connection, client_id: str) -> None:
    """Hold the client's presence lock on this connection, the one it listens on, before `register`.

    Raises IllegalState while another session holds it: a client id that is in use, or the client's own
    lost connection that the server has not given up yet.
    """
    with translated(target_of(connection)):
        if not clients.announce(connection, client_id):
            raise IllegalState(f"client {client_id}", "already connected")


def register(connection: Connection, registration: Registration) -> None:
    """Enter a client into a group, which is created where there is none, and tell the group."""
    with _changing(connection):
        clients.add(connection, registration)
        if registration.kind is ClientKind.CONSUMER:
            clients.notify_group(connection, registration.group)


def heartbeat(connection: Connection, client_id: str) -> bool:
    """A sign of life of a client for all its groups; False when the broker has given it up: register again."""
    with _changing(connection):
        return clients.beat(connection, client_id) > 0


def unregister(connection: Connection, client_id: str, group: str, kind: ClientKind) -> None:
    """Take a client out of a group; a consumer's queues are free at once, and the group is told."""
    with _changing(connection):
        clients.remove(connection, client_id, group, kind)
        if kind is ClientKind.CONSUMER:
            clients.notify_group(connection, group)


def members(connection: Connection, group: str) -> list[str]:
    """The client ids of the live consumers of a group, sorted."""
    with translated(target_of(connection)):
        return clients.members(connection, group)


def reap(connection: Connection, expiry: timedelta = CLIENT_EXPIRY) -> list[str]:
    """Remove clients that are silent or whose connection is closed, and tell their groups; returns the groups."""
    with _changing(connection):
        groups = clients.reap(connection, expiry)
        for group in groups:
            clients.notify_group(connection, group)
    return groups


@contextmanager
def _changing(connection: Connection) -> Iterator[None]:
    with translated(target_of(connection)), transaction(connection):
        connection.execute(select(func.set_config("synchronous_commit", "local", True)))
        yield
