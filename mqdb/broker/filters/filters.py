"""Filters: whether a broker accepts SQL92 filters. RocketMQ: ClientManageProcessor.checkClientConfig."""

from collections.abc import Collection

from sqlalchemy import Connection

from mqdb.errors import FilterDisabled
from mqdb.selector.subscription import ExpressionType
from mqdb.store import broker_settings
from mqdb.store.engine import translated


def check_filters(connection: Connection, expression_types: Collection[str]) -> None:
    """Raise FilterDisabled if one of the types is SQL92 and `enable_property_filter` is off.

    Consumers that join a group need not call this, because `membership.register` does.
    """
    if ExpressionType.SQL92 in expression_types:
        with translated(connection):
            is_enabled = broker_settings.find(connection).enable_property_filter
        if not is_enabled:
            raise FilterDisabled(ExpressionType.SQL92)
