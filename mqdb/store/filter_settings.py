"""What a broker says about filters. It writes it down when it starts; clients, in whichever process, obey.

RocketMQ: BrokerConfig.enablePropertyFilter, filterSupportRetry.
"""

from typing import NamedTuple

from sqlalchemy import Connection, ScalarSelect, select, update

from mqdb.store.tables import broker


class FilterSettings(NamedTuple):
    """As `mqdb.settings` says what they mean."""

    enable_property_filter: bool = True
    filter_support_retry: bool = False


def find(connection: Connection) -> FilterSettings:
    """The settings as they are."""
    return FilterSettings(*connection.execute(select(*(broker.c[name] for name in FilterSettings._fields))).one())


def filter_support_retry() -> ScalarSelect[bool]:
    """That setting, for a statement that obeys it. PostgreSQL looks once in each execution."""
    return select(broker.c.filter_support_retry).scalar_subquery()


def replace(connection: Connection, settings: FilterSettings) -> None:
    """Let the settings be these, in the caller's transaction."""
    connection.execute(update(broker).values(settings._asdict()))
