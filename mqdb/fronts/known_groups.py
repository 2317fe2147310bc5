"""The settings and subscriptions of groups for consumers that pop, cached for a few seconds."""

from collections.abc import Collection
from functools import partial

from mqdb.common.group import ConsumeMode
from mqdb.fronts.believed import Believed
from mqdb.fronts.database import Database
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.consumers import groups, subscriptions
from mqdb.store.consumers.groups import GroupSettings


class KnownGroups:
    """The groups of one broker. Call it from the event loop only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = Believed(self._settings_of)
        self._subscriptions = Believed(self._subscriptions_of)

    async def settings(self, group: str) -> GroupSettings | None:
        """The settings of a group; None if the group does not exist."""
        return await self._settings.get(group)

    async def pops(self, group: str) -> bool:
        """Whether a group pops."""
        settings = await self.settings(group)
        return settings is not None and settings.consume_mode is ConsumeMode.POP

    async def subscribes(self, group: str, wanted: SubscriptionData) -> bool:
        """Whether a group subscribes to a topic with exactly this filter."""
        return wanted in await self._subscriptions.get(group)

    async def _settings_of(self, group: str) -> GroupSettings | None:
        return await self._database.run(partial(groups.find, name=group))

    async def _subscriptions_of(self, group: str) -> Collection[SubscriptionData]:
        return await self._database.run(partial(subscriptions.find, group=group))
