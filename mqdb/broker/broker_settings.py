"""Broker settings: `mqdb serve` stores settings that all clients, in any process, have to obey."""

from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.common.delay_level import DelayLevels
from mqdb.common.durability import Durability
from mqdb.store import broker_settings
from mqdb.store.broker_settings import BrokerSettings
from mqdb.store.engine import transaction, translates
from mqdb.store.schedule import delay_levels


class Change(NamedTuple):
    """A setting whose value was changed."""

    setting: str
    before: object
    after: object


@translates
def change_settings(
    connection: Connection,
    settings: BrokerSettings,
    levels: DelayLevels | None = None,
    durability: Durability | None = None,
) -> list[Change]:
    """Set the broker's settings; returns the changes.

    Delay levels and the default durability are not changed if they are not given.

    Subscribed consumers continue, and waiting messages keep their times of delivery. But a delayed message that would
    have to wait longer than its level's new delay is due immediately.
    """
    with transaction(connection):
        before = broker_settings.find(connection)
        found = zip(BrokerSettings._fields, before, settings, strict=True)
        changes = [Change(*each) for each in found if each[1] != each[2]]
        if changes:
            broker_settings.replace(connection, settings)
        if levels is not None and (old := delay_levels.find(connection)) != levels:
            delay_levels.replace(connection, levels)
            changes.append(Change("message_delay_level", old.text, levels.text))
        if durability is not None and (had := broker_settings.default_durability(connection)) != durability:
            broker_settings.replace_default_durability(connection, durability)
            changes.append(Change("default_durability", had.value, durability.value))
    return changes
