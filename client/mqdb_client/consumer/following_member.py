"""A member that follows the mode of its group: a `Member` while the group pulls, a `PopMember` while it pops.

When the mode changes, a new member starts, and the previous one finishes its messages in hand. The broker ensures that
no queue is read in both modes during the change. A thread waits for changes, because replacing a member takes as long
as its listeners run. RocketMQ: RebalanceImpl.tryQueryAssignment.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from mqdb.common.group import ConsumeMode
from mqdb.common.message import MessageQueue
from mqdb.errors import MqdbError
from mqdb.selector.subscription import MessageFilter
from mqdb.store.clients.clients import ClientKind
from mqdb.store.consumers import groups
from mqdb_client.consumer.member import Member, MemberParts
from mqdb_client.consumer.pop_member import PopMember
from mqdb_client.consumer.push_strategy import PushStrategy
from mqdb_client.consumer.queues.process_queue import ProcessQueue
from mqdb_client.outage import level_of

logger = logging.getLogger(__name__)

#: The pause after a failure.
_AGAIN_SECONDS: Final = 2.0


class FollowingMember:
    """A member that follows its group.

    The member is started once, after the instance has joined the group, and leaves the group once.
    """

    def __init__(self, parts: MemberParts[PushStrategy]) -> None:
        self._parts = parts
        self._instance, self._group = parts.instance, parts.config.group
        #: Held while the member is replaced, and while it is notified.
        self._guard = threading.Lock()
        #: The current member, in the mode of the group. None before the start, and while its successor cannot start.
        self.current: Member | PopMember | None = None
        #: The previous member, which finishes its messages in hand.
        self._predecessor: Member | PopMember | None = None
        self._is_suspended = False
        self._is_leaving = False
        self._changed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"mqdb-{self._group}-mode-{parts.instance.broker_name}", daemon=True
        )

    def start(self, *, may_be_down: bool) -> None:
        """Consume in the current mode of the group. If this fails, nothing keeps running."""
        is_known = not may_be_down or self._instance.is_met
        self._begin(self._mode_of_group() if is_known else ConsumeMode.PULL, may_be_down=may_be_down)
        self._callback = self._instance.on_group_change(self._on_group_change)
        self._thread.start()

    def read(self, filters: Mapping[str, MessageFilter]) -> None:
        """Read only these topics from now on."""
        with self._guard:
            self._parts = self._parts._replace(filters=filters)
            if self.current is not None:
                self.current.read(filters)

    def suspend(self) -> None:
        """Stop getting messages until `resume`. Messages in hand are consumed."""
        with self._guard:
            self._is_suspended = True
            if self.current is not None:
                self.current.suspend()

    def resume(self) -> None:
        """Get messages again after `suspend`."""
        with self._guard:
            self._is_suspended = False
            if self.current is not None:
                self.current.resume()

    def look_again(self) -> None:
        """Check again which queues to read, because the assignment may have changed."""
        if (member := self.current) is not None:
            member.look_again()

    def on_arrival(self, queue_keys: Sequence[int]) -> None:
        """Note that these queues have messages."""
        if (member := self.current) is not None:
            member.on_arrival(queue_keys)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that the member reads, in order; empty while the group pops."""
        return () if (member := self.current) is None else member.assignment

    @property
    def held(self) -> Sequence[ProcessQueue]:
        """The queues of which the member has messages in hand."""
        members = (self._predecessor, self.current)
        return [held for member in members if member is not None for held in member.held]

    def begin_to_leave(self) -> None:
        """Start no further messages."""
        with self._guard:
            self._is_leaving = True
            self._callback.cancel()
            for member in (self._predecessor, self.current):
                if member is not None:
                    member.has_successor = False
                    member.begin_to_leave()
        self._changed.set()

    def leave(self, seconds: float | None = None) -> None:
        """Wait until the messages in hand are settled, or for `seconds`, then leave the group."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for member in (self._predecessor, self.current):
            if member is not None:
                member.leave(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        self._thread.join()
        self._instance.unregister(self._group, ClientKind.CONSUMER)

    # -- the thread -----------------------------------------------------------------------------

    def _on_group_change(self, group: str | None) -> None:
        if group in (None, self._group):
            self._changed.set()

    def _run(self) -> None:
        seconds: float | None = None
        while not self._is_leaving:
            self._changed.wait(seconds)
            self._changed.clear()
            try:
                self._follow()
                seconds = None
            except Exception as error:  # the outermost level of the thread: any error is logged, and the work retried
                unexpected = None if isinstance(error, MqdbError) else error
                fields = {"group": self._group, "reason": str(error)}
                sentence = "could not consume in the mode of group %(group)s; will retry: %(reason)s"
                logger.log(level_of(error), sentence, fields, extra=fields, exc_info=unexpected)
                seconds = _AGAIN_SECONDS

    def _follow(self) -> None:
        mode, current = self._mode_of_group(), self.current
        if current is not None and mode is current.consume_mode:
            current.look_again()
            return
        try:
            with self._guard:
                if self._is_leaving:
                    return
                if current is not None:
                    fields = {"group": self._group, "mode": mode.lower()}
                    logger.info("the group consumes in another way", extra=fields)
                    self._predecessor, self.current = current, None
                    current.has_successor = True
                    current.begin_to_leave()
                self._begin(mode, may_be_down=True)
        finally:
            # There is at most one member of each kind, so the next change waits for this one.
            if self._predecessor is not None:
                self._predecessor.leave()
                self._predecessor = None

    def _begin(self, mode: ConsumeMode, *, may_be_down: bool) -> None:
        member = PopMember(self._parts) if mode is ConsumeMode.POP else Member(self._parts)
        if self._is_suspended:
            member.suspend()
        member.start(may_be_down=may_be_down)
        self.current = member

    def _mode_of_group(self) -> ConsumeMode:
        with self._instance.connect() as connection:
            settings = groups.find(connection, self._group)
        return ConsumeMode.PULL if settings is None else settings.consume_mode
