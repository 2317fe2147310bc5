"""Access keys of RocketMQ's clients, for all protocols: their secrets and rights.

An access key is a principal of `mqdb acl` that is not a role, and that has a secret. While no key has a secret, a front
serves all clients that can connect, provided that only this machine can connect or the settings allow it. Names are
full names: a client adds the namespace of its key itself.
RocketMQ: PlainAccessValidator, DefaultAuthorizationContextBuilder.
"""

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Final

from mqdb.common.topic import RETRY_PREFIX, TRACE_TOPIC
from mqdb.errors import AccessDenied, MqdbError, SignatureInvalid
from mqdb.fronts.database import Database
from mqdb.store.acl import Access, Resource, ResourceType, held, secrets

#: For this long, a revoked right may still be used, and a new right may not work yet.
_BELIEVED_SECONDS: Final = 5.0

#: Maximum number of cached rights; beyond it, the cache is emptied.
_MOST_REMEMBERED: Final = 10_000


class OpenToAll(Exception):
    """Without a key, every client that can connect to the front could do everything."""


class AccessKeys:
    """The access keys of one broker. Use it in the front's event loop only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_open = False
        self._secrets: dict[str, str] = {}
        self._loaded_at = 0.0
        self._loading: asyncio.Task[None] | None = None
        #: The cached rights of each key, with their expiry times.
        self._known: dict[tuple[str, Resource], tuple[bool, float]] = {}

    async def begin(self, *, is_open: bool) -> None:
        """Load the keys.

        Raises OpenToAll if no key has a secret and `is_open` is false; otherwise everyone may connect in this case.
        """
        self._is_open = is_open
        await self._load()
        if not self._secrets and not self._is_open:
            raise OpenToAll

    @property
    def are_asked_for(self) -> bool:
        """Whether requests have to be signed, as far as is known.

        The keys are reloaded from time to time, without waiting.
        """
        if self._loading is None and time.monotonic() > self._loaded_at + _BELIEVED_SECONDS:
            self._loading = self._database.spawn(self._load_again())
        return bool(self._secrets) or not self._is_open

    def is_known(self, name: str) -> bool:
        """Whether a key has a secret. While no key has a secret, all keys are known."""
        return not self.are_asked_for or name in self._secrets

    def secret_of(self, name: str) -> str:
        """The secret of a key. Raises SignatureInvalid if the key has no secret."""
        secret = self._secrets.get(name)
        if secret is None:
            raise SignatureInvalid(name)
        return secret

    async def require_of(self, name: str, *wanted: Resource) -> None:
        """Raise AccessDenied unless a key has all these rights. While no key has a secret, everyone has all rights."""
        has = await self.held_by(name, *wanted)
        for each in wanted:
            if each not in has:
                raise AccessDenied(name, *each)

    async def held_by(self, name: str, *wanted: Resource) -> set[Resource]:
        """The given rights that a key has. While no key has a secret, everyone has all rights."""
        if not self.are_asked_for or not wanted:
            return set(wanted)
        now = time.monotonic()
        unknown = {each for each in wanted if self._known.get((name, each), (False, 0.0))[1] < now}
        if unknown:
            found = await self._database.run(partial(held, principal=name, wanted=unknown))
            if len(self._known) > _MOST_REMEMBERED:
                self._known.clear()
            self._known |= {(name, each): (each in found, now + _BELIEVED_SECONDS) for each in unknown}
        return {each for each in wanted if self._known[name, each][0]}

    async def _load(self) -> None:
        self._secrets = await self._database.run(secrets)
        self._loaded_at = time.monotonic()

    async def _load_again(self) -> None:
        try:
            with suppress(MqdbError):  # the known keys stay valid until the database is available again
                await self._load()
        finally:
            self._loaded_at = time.monotonic()
            self._loading = None


#: The right ADMIN on all topics. It allows requests that no other right covers.
ADMINISTRATION: Final = Resource(Access.ADMIN, ResourceType.TOPIC, "*")


def topic_right(access: Access, topic: str) -> Resource:
    """A right on a topic; reading or writing a retry topic requires membership in its group.

    No right covers the topic of traces, because traces name messages of all topics: only administrators read it.
    """
    if topic == TRACE_TOPIC:
        return ADMINISTRATION
    if topic.startswith(RETRY_PREFIX):
        return group_right(topic.removeprefix(RETRY_PREFIX))
    return Resource(access, ResourceType.TOPIC, topic)


def group_right(group: str) -> Resource:
    """The right to be a member of a group."""
    return Resource(Access.READ, ResourceType.GROUP, group)
