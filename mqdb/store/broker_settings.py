"""The settings of a broker that all its clients obey, in any process: columns of mqdb.broker.

RocketMQ: BrokerConfig, MessageStoreConfig.
"""

from typing import NamedTuple

from sqlalchemy import Connection, select, update

from mqdb.common.durability import Durability
from mqdb.store.tables import broker


class BrokerSettings(NamedTuple):
    """The columns; `mqdb.settings` explains them."""

    enable_property_filter: bool = True
    filter_support_retry: bool = False
    reject_transaction_message: bool = False
    timer_max_delay_ms: int | None = None


def find(connection: Connection) -> BrokerSettings:
    """The current settings."""
    return BrokerSettings(*connection.execute(select(*(broker.c[name] for name in BrokerSettings._fields))).one())


def replace(connection: Connection, settings: BrokerSettings) -> None:
    """Replace the settings, in the caller's transaction, for all future sends and subscriptions."""
    connection.execute(update(broker).values(settings._asdict()))


def default_durability(connection: Connection) -> Durability:
    """The durability of producers that do not choose one."""
    return Durability(connection.scalars(select(broker.c.default_durability)).one())


def replace_default_durability(connection: Connection, durability: Durability) -> None:
    """Set the default durability of producers' future connections, in the caller's transaction."""
    connection.execute(update(broker).values(default_durability=durability.value))
