"""Broker settings: `mqdb serve` writes down what clients, in whichever process, have to obey."""

from typing import NamedTuple

from sqlalchemy import Connection

from mqdb.common.delay_level import DelayLevels
from mqdb.common.durability import Durability
from mqdb.store import broker_settings
from mqdb.store.broker_settings import BrokerSettings
from mqdb.store.engine import transaction, translates
from mqdb.store.schedule import delay_levels


class Change(NamedTuple):
    """A setting that had another value before."""

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
    """Let the settings be these from now on; returns what that has changed.

    Delay levels and the default durability stay as they are if they are not given.

    A consumer that has subscribed goes on, and so does what waits for its time of delivery. A delayed message that has
    longer to wait than its level takes now is due at once.
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
