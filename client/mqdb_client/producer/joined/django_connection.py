"""Django connections, for a send that joins their transaction. Django is not imported (decision 0074)."""

from typing import Any, Protocol

import psycopg

from mqdb.errors import IllegalState, ParameterInvalid


class DjangoConnection(Protocol):
    """The part of `django.db.connection` (or one of `django.db.connections`) that is used here."""

    @property
    def vendor(self) -> str:
        """The kind of database: `postgresql`, or another kind."""

    @property
    def in_atomic_block(self) -> bool:
        """Whether `transaction.atomic()` is open."""

    @property
    def autocommit(self) -> bool:
        """Whether each statement is a separate transaction."""

    @property
    def connection(self) -> Any:
        """The driver's connection; None before the first use."""


def is_of_django(connection: object) -> bool:
    """Whether an object is a Django connection, judged by its attributes."""
    # django.db.connection is a proxy, so its class says nothing, and importing Django is up to the caller.
    return hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor")


def below_django(connection: Any) -> "psycopg.Connection[Any]":
    """The driver's connection below a Django connection.

    Raises ParameterInvalid if it is not a psycopg 3 connection, and IllegalState outside a transaction, where Django by
    default commits each statement by itself.
    """
    if connection.vendor != "postgresql":
        raise ParameterInvalid("connection", f"Django's {connection.vendor}", "messages go to a PostgreSQL database")
    below = connection.connection
    if below is not None and not isinstance(below, psycopg.Connection):
        raise ParameterInvalid("connection", type(below).__module__, "let Django use psycopg 3")
    if below is None or (connection.autocommit and not connection.in_atomic_block):
        raise IllegalState("Django's connection", "in no transaction; send inside transaction.atomic()")
    return below
