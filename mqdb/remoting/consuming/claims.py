"""Claims: the queues that a front's clients own. RocketMQ has no owners; its clients own the queues that they pull.

    14, 41, a pull without a claim ──▶ take ──▶ Claim ──▶ commits, gathered, written once a second for each group
                                                  │
              given back, left, lost ◀────────────┘

A claim is lost if a commit is refused or its epoch has risen, which means that another member has the queue or that its
offset was reset. The answer to the client's next pull contains the offset to continue from.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from sqlalchemy import Connection as DatabaseConnection

from mqdb.broker.clients import membership
from mqdb.broker.consumers import offsets, queue_locks
from mqdb.broker.consumers.group_offsets import commit_positions
from mqdb.broker.log.proofs import proven
from mqdb.errors import MqdbError
from mqdb.fronts.database import Database
from mqdb.remoting.consuming.places import Place
from mqdb.remoting.consuming.readings import Claim
from mqdb.remoting.session.client import Client, Consumer
from mqdb.remoting.session.members import FrontMembers
from mqdb.store.consumers.consumer_offsets import OwnedQueue, owners
from mqdb.store.log import history as histories
from mqdb.store.log.history import History
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: Java's clients commit in one thread and leave in another, so their last commits may arrive after the request to leave
#: (35).
_LINGER_SECONDS: Final = 0.05

#: A function that takes a queue, using a database connection.
Take = Callable[[DatabaseConnection], list[OwnedQueue]]


class ClaimListener(Protocol):
    """Receives events about the claims of a front, in the front's event loop."""

    def wanted(self, group: str, queue_key: int, client_id: str) -> None:
        """A client requested a queue that another client owns."""

    def committed(self, claim: Claim) -> None:
        """A client reported an offset by other means than a pull."""

    def lost(self, claim: Claim) -> None:
        """Called when a client has lost a queue."""


class Claims:
    """The claims of one front.

    A queue has one claim in each group, because it has one owner. Use it in the front's event loop only.
    """

    def __init__(
        self, database: Database, members: FrontMembers, listener: ClaimListener, commit_seconds: float
    ) -> None:
        self._database = database
        self._members = members
        self._listener = listener
        self._commit_seconds = commit_seconds
        self._claims: dict[str, dict[int, Claim]] = {}
        self._unwritten: dict[tuple[str, int], Claim] = {}
        #: Lost claims, by client, group and queue, of which the client does not know yet.
        self._lost: dict[tuple[str, str, int], Claim] = {}
        #: By group and queue: the client that will consume the queue in order once it has chosen a starting offset, and
        #: its way of locking.
        self._promised: dict[tuple[str, int], tuple[str, Take]] = {}
        # Two simultaneous takes of one queue could otherwise leave the older epoch here.
        self._taking: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes: WeakValueDictionary[str, asyncio.Future[None]] = WeakValueDictionary()
        self._checks: set[str] = set()
        #: Groups for which an operator has disabled consuming.
        self.switched_off: set[str] = set()
        database.spawn(self._write_forever())

    async def close(self) -> None:
        """Write the offsets that clients have committed. Call it after closing the connections."""
        try:
            await self.write_unwritten()
        except MqdbError as error:
            fields = {"reason": str(error)}
            sentence = "stopped without a last commit; messages will be delivered again: %(reason)s"
            logger.warning(sentence, fields, extra=fields)

    # -- who has what -------------------------------------------------------------------------

    def of(self, client_id: str, group: str, queue_key: int) -> Claim | None:
        """The claim of a client on a queue, or None."""
        claim = self.owner(group, queue_key)
        return claim if claim is not None and claim.client_id == client_id else None

    def owner(self, group: str, queue_key: int) -> Claim | None:
        """The claim on a queue, regardless of its client, or None."""
        return self._claims.get(group, _NONE).get(queue_key)

    def of_group(self, group: str) -> list[Claim]:
        """The claims of all clients of a group."""
        return list(self._claims.get(group, _NONE).values())

    @property
    def groups(self) -> list[str]:
        """The groups that have any claims."""
        return list(self._claims)

    # -- taking -------------------------------------------------------------------------------

    async def take(self, client: Client, consumer: Consumer, place: Place) -> Claim | None:
        """Take a queue, at the offset of the group or its start; returns None if the queue is not free.

        Without a `starting_point`, the group must already have an offset in the queue.
        """
        group, key = consumer.registration.group, place.queue_key
        start = consumer.starting_point(place.queue.topic)
        take: Take = lambda connection: offsets.take_queues(connection, group, client.client_id, [key], start)  # noqa: E731
        return await self._take(client, group, place, take)

    async def take_at(self, client: Client, consumer: Consumer, place: Place, offset: int) -> Claim | None:
        """Take a queue that a client already reads, or at the offset that it has chosen; None if the queue is not free.

        If the group's offset is higher, because another member had the queue, the client continues there.
        """
        group = consumer.registration.group
        key, at = (group, place.queue_key), {place.queue_key: offset}
        client_id, lock = self._promised.get(key, ("", None))
        is_locked = lock is not None and client_id == client.client_id

        def take(connection: DatabaseConnection) -> list[OwnedQueue]:
            taken = offsets.take_queues_at(connection, group, client.client_id, at)
            return lock(connection) if taken and is_locked and lock is not None else taken

        claim = await self._take(client, group, place, take, is_locked=is_locked)
        if claim is not None:
            self._promised.pop(key, None)
            if claim.wanted > offset and not consumer.is_active:
                claim.goes_on_at = claim.wanted
        return claim

    async def take_locked(self, client: Client, group: str, place: Place, take: Take) -> Claim | None:
        """Take a queue that is consumed in order, with a `take` that also locks it; None if the queue is not free."""
        return await self._take(client, group, place, take, is_locked=True)

    def promise(self, client: Client, group: str, place: Place, take: Take) -> bool:
        """Let `take_at` lock a queue in which the group has no offset; False if another client has this promise."""
        promised = self._promised.setdefault((group, place.queue_key), (client.client_id, take))
        return promised[0] == client.client_id

    async def _take(
        self, client: Client, group: str, place: Place, take: Take, *, is_locked: bool = False
    ) -> Claim | None:
        key = (group, place.queue_key)
        if (taking := self._taking.get(key)) is None:
            taking = self._taking[key] = asyncio.Lock()
        async with taking:
            claim = self.of(client.client_id, *key)
            if claim is not None and (claim.is_locked or not is_locked):
                await self.write([claim])  # and check whether the claim still holds
                if not claim.is_lost:
                    return claim
            lost = self._lost.get((client.client_id, *key))
            taken = await self._database.run(partial(_take_and_look, take=take, lost=lost))
            if taken is None:
                self._listener.wanted(*key, client.client_id)
                return None
            owned, is_same_log = taken
            if (consumer := client.consumers.get(group)) is None:  # the client has left: the queue is free
                return None
            claim = Claim(client.client_id, group, place, owned, is_locked=is_locked, may_go_back=consumer.is_active)
            self._hold(claim, is_same_log=is_same_log)
            return claim

    def _hold(self, claim: Claim, *, is_same_log: bool) -> None:
        group, key = claim.group, claim.queue_key
        before = self.owner(group, key)
        if before is not None and before.client_id == claim.client_id:
            self._forget(before)
        elif before is not None:
            self.lose(before)
        self._claims.setdefault(group, {})[key] = claim
        lost = self._lost.pop((claim.client_id, group, key), None)
        if lost is not None and not is_same_log:
            claim.goes_on_at = claim.wanted

    # -- commits ------------------------------------------------------------------------------

    def commit(self, claim: Claim, offset: int) -> None:
        """Note an offset of a client, which is written soon.

        The offset only moves forward, except for a client that seeks.
        """
        if offset == claim.wanted or not claim.may_commit(offset):
            return
        if offset < claim.wanted and not claim.may_go_back:
            return
        claim.wanted = offset
        self._unwritten[claim.group, claim.queue_key] = claim

    async def correct(self, claim: Claim, offset: int) -> None:
        """Continue at another offset, because the client's current offset does not exist."""
        claim.wanted = offset
        owned = claim.position()._replace(segment=0)
        if await self._database.run(partial(offsets.correct_offset, group=claim.group, owned=owned)):
            claim.goes_on_at, claim.is_told = offset, True
        else:
            self.lose(claim)

    async def write(self, claims: Iterable[Claim]) -> None:
        """Commit the offsets of these claims, with one call for each group.

        Claims whose commit is refused become lost.
        """
        by_group: defaultdict[tuple[str, bool], list[Claim]] = defaultdict(list)
        for claim in claims:
            by_group[claim.group, claim.may_go_back].append(claim)
        writing = [self._write(group, each, may_go_back) for (group, may_go_back), each in by_group.items()]
        for error in await asyncio.gather(*writing, return_exceptions=True):
            if error is not None:
                raise error

    async def write_unwritten(self, group: str | None = None) -> None:
        """Commit all noted offsets of a group, and wait for writes in progress; None stands for all groups."""
        await self.write([each for each in self._unwritten.values() if group in (None, each.group)])
        for writing in [each for name, each in self._writing.items() if group in (None, name)]:
            async with writing:
                pass

    async def _write(self, group: str, claims: Sequence[Claim], may_go_back: bool) -> None:
        verb = commit_positions if may_go_back else offsets.commit_offsets
        if (writing := self._writing.get(group)) is None:
            writing = self._writing[group] = asyncio.Lock()
        async with writing:
            held = [claim for claim in claims if not claim.is_lost]
            positions = {(claim.queue_key, claim.epoch): (claim, claim.position()) for claim in held}
            owned = [position for _, position in positions.values()]
            if not owned:
                return
            for claim in held:
                self._unwritten.pop((group, claim.queue_key), None)
            try:
                lost = await self._database.run(lambda connection: verb(connection, group, owned))
            except BaseException:
                for claim in held:
                    if self.owner(group, claim.queue_key) is claim:
                        self._unwritten[group, claim.queue_key] = claim
                raise
        for each in lost:
            self.lose(positions[each.queue_key, each.epoch][0])

    async def _write_forever(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(self._commit_seconds)
            try:
                await self.write_unwritten()
                is_failing = False
            except Exception as error:
                if not is_failing:
                    unexpected = None if isinstance(error, MqdbError) else error
                    fields = {"reason": str(error)}
                    sentence = "could not commit offsets of clients; will retry: %(reason)s"
                    logger.log(level_of(error), sentence, fields, extra=fields, exc_info=unexpected)
                is_failing = True

    # -- giving back, and losing --------------------------------------------------------------

    async def release(self, claims: Sequence[Claim]) -> None:
        """Release queues of one group, after a last commit."""
        await self.write(claims)
        kept = [claim for claim in claims if not claim.is_lost]
        for claim in kept:
            self._forget(claim)
        for client_id, is_locked in {(claim.client_id, claim.is_locked) for claim in kept}:
            mine = [each for each in kept if (each.client_id, each.is_locked) == (client_id, is_locked)]
            await self._database.run(partial(_release, claims=mine))

    def _forget(self, claim: Claim) -> None:
        claim.is_lost = True
        self._unwritten.pop((claim.group, claim.queue_key), None)
        of_group = self._claims.get(claim.group, {})
        if of_group.get(claim.queue_key) is claim:
            del of_group[claim.queue_key]
            if not of_group:
                self._claims.pop(claim.group, None)

    def lose(self, claim: Claim) -> None:
        """Note that the client has lost the queue. The client's next pull finds out the reason."""
        if claim.is_lost:
            return
        self._forget(claim)
        self._lost[claim.client_id, claim.group, claim.queue_key] = claim
        fields = {"group": claim.group, "queue": str(claim.queue), "client_id": claim.client_id}
        if claim.history == self._database.instance.history:
            logger.warning(
                "client %(client_id)s of group %(group)s lost queue %(queue)s: another member owns it, or its offset "
                "was set",
                fields,
                extra=fields,
            )
        else:
            logger.info("queue lost: the server was restarted or replaced", extra=fields)
        self._listener.lost(claim)

    async def left(self, client: Client, group: str) -> None:
        """A client leaves a group: its offsets are written before other members may take its queues."""
        for key in [each for each in self._lost if each[:2] == (client.client_id, group)]:
            del self._lost[key]
        for promised in [key for key, each in self._promised.items() if (each[0], key[0]) == (client.client_id, group)]:
            del self._promised[promised]
        mine = [claim for claim in self.of_group(group) if claim.client_id == client.client_id]
        if mine:
            await asyncio.sleep(_LINGER_SECONDS)
        try:
            await self.release(mine)
        except MqdbError as error:
            fields = {"group": group, "client_id": client.client_id, "reason": str(error)}
            logger.warning(
                "client %(client_id)s left group %(group)s without a last commit; messages will be delivered again: "
                "%(reason)s",
                fields,
                extra=fields,
            )
        for claim in mine:
            self._forget(claim)

    # -- changes ------------------------------------------------------------------------------

    def next_change(self, group: str) -> "asyncio.Future[None]":
        """A future that completes at the next change in a group."""
        if (change := self._changes.get(group)) is None:
            change = self._changes[group] = self._database.loop.create_future()
        return change

    def changed(self, group: str | None) -> None:
        """The members or free queues of a group may have changed; None stands for all groups."""
        for name in list(self._changes) if group is None else [group]:
            if (change := self._changes.pop(name, None)) is not None:
                change.set_result(None)
        # Includes groups whose members have no queue: they may get one, even if the group is switched off.
        here = {name for client in self._members.clients.values() for name in client.consumers}
        known = here | self._claims.keys() | self.switched_off
        for name in known if group is None else known & {group}:
            if name not in self._checks:
                self._checks.add(name)
                self._database.spawn(self._check(name))

    async def _check(self, group: str) -> None:
        """Find claims that clients no longer own: without commits, a reset can be detected only in this way."""
        self._checks.discard(group)  # later changes are checked again
        claims = self.of_group(group)
        keys = [claim.queue_key for claim in claims]
        try:
            now, found, may_consume = await self._database.run(
                lambda connection: (
                    histories.find(connection),
                    owners(connection, group, keys),
                    membership.may_consume(connection, group),
                )
            )
        except MqdbError as error:
            fields = {"group": group, "reason": str(error)}
            sentence = "could not look up the owners of queues of group %(group)s: %(reason)s"
            logger.log(level_of(error), sentence, fields, extra=fields)
            return
        if may_consume:
            self.switched_off.discard(group)
        else:
            self.switched_off.add(group)
        for claim in claims:
            is_mine = found.get(claim.queue_key) == (claim.client_id, claim.epoch)
            if not claim.is_lost and not (is_mine and claim.history == now):
                self.lose(claim)


_NONE: Final[Mapping[int, Claim]] = {}


def _take_and_look(connection: DatabaseConnection, take: Take, lost: Claim | None) -> tuple[OwnedQueue, bool] | None:
    """Take a queue, and return it with a flag that says whether a client that lost it may continue.

    The client may continue if the server was only restarted: the log still has the last message that the client read.
    """
    history: History = histories.find(connection)
    taken = take(connection)
    if not taken:
        return None
    [owned] = taken
    is_same_log = False
    if lost is not None and lost.history != history and (newest := lost.newest) is not None:
        is_same_log = bool(proven(connection, {owned.queue_key: newest}))
    return owned._replace(history=history), is_same_log


def _release(connection: DatabaseConnection, claims: Sequence[Claim]) -> None:
    """Release claims of one client, which are either all locked or all unlocked."""
    first, owned = claims[0], [claim.position() for claim in claims]
    if first.is_locked:
        queue_locks.release_queues(connection, first.group, first.client_id, owned)
    else:
        offsets.release_queues(connection, first.group, owned)
