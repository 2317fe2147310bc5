"""Settling: find the outcome of sends that got no answer and that no thread waits for.

All open sends of one backend are settled together. A lost connection may leave a thousand sends open. If they were
settled one by one, each send would wait for the backend to end, and then query one id on the only connection for
queries.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from mqdb.broker.log.outcome import Backend, StoredAt
from mqdb.errors import MqdbError, SendGivenUp
from mqdb_client.producer.append.append_plan import NoAnswer
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.sends.sending import Attempt
from mqdb_client.producer.sends.unknown import settle

logger = logging.getLogger(__name__)

#: The maximum number of messages in one lookup.
MAX_LOOKED_FOR: Final = 1_000


class OpenSend(NamedTuple):
    """An attempt with an unknown outcome.

    `go_on` is called when `unknown.found` is set, or when it is certain that it will not be set.
    """

    attempt: Attempt
    unknown: NoAnswer
    go_on: Callable[[], None]


class _Asked(NamedTuple):
    """The broker and the backend whose answers are missing."""

    link: BrokerLink
    backend: Backend | None


class Settling:
    """The open sends of a producer, by the backend that ran their statement. Thread-safe.

    While a backend has open sends, a thread waits for the end of this backend.
    """

    def __init__(self, threads_name: str) -> None:
        self._threads_name = threads_name
        self._changed = threading.Condition()
        self._open: dict[_Asked, list[OpenSend]] = {}

    def add(self, open_: OpenSend) -> None:
        """Settle a send in another thread, which calls `go_on`; in this thread if no other thread can be started.

        `go_on` must not raise.
        """
        asked = _Asked(open_.attempt.place.link, open_.unknown.backend)
        with self._changed:
            if asked in self._open:
                self._open[asked].append(open_)
                return
            name = f"{self._threads_name}{asked.link.name}"
            thread = threading.Thread(target=self._settle_all, args=(asked,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                fields = {"broker": asked.link.name, "topic": open_.attempt.topic}
                sentence = "settles a send to topic %(topic)s on broker %(broker)s alone, without a thread for several"
                logger.exception(sentence, fields, extra=fields)
            else:
                self._open[asked] = [open_]
                return
        open_.go_on()

    def end_late(self) -> None:
        """Let sends past their deadlines continue, even if other sends still wait."""
        now = time.monotonic()
        late = []
        with self._changed:
            for all_open in self._open.values():
                late += [open_ for open_ in all_open if open_.attempt.deadline <= now]
                all_open[:] = [open_ for open_ in all_open if open_.attempt.deadline > now]
        for open_ in late:
            open_.go_on()

    def close(self) -> None:
        """Wait until no send is open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def _settle_all(self, asked: _Asked) -> None:
        while True:
            with self._changed:
                batch = self._open[asked][:MAX_LOOKED_FOR]
                if not batch:
                    del self._open[asked]
                    self._changed.notify_all()
                    return
            found = _found(asked, batch)
            with self._changed:
                left = set(map(id, self._open[asked]))
                batch = [open_ for open_ in batch if id(open_) in left]  # the others have timed out in the meantime
                done = set(map(id, batch))
                self._open[asked] = [open_ for open_ in self._open[asked] if id(open_) not in done]
            for open_ in batch:
                if found is not None:
                    its = {each: found[each] for each in open_.attempt.pending.unique_ids if each in found}
                    # An unknown backend may still store the messages.
                    if its or asked.backend is not None:
                        open_.unknown.found = its
                open_.go_on()


def _found(asked: _Asked, batch: list[OpenSend]) -> Mapping[UUID, StoredAt] | None:
    """The stored messages among these sends; None if this is still unknown at the latest of their deadlines."""
    last = max(batch, key=lambda open_: open_.attempt.deadline).attempt
    unknown = NoAnswer(batch[0].unknown.reason, asked.backend, min(open_.unknown.after_pos for open_ in batch))
    unique_ids = [unique_id for open_ in batch for unique_id in open_.attempt.pending.unique_ids]
    late = SendGivenUp(last.topic, last.timeout_seconds)
    try:
        return settle(asked.link, unknown, unique_ids, last.deadline, late)
    except (MqdbError, NoAnswer):
        return None  # each send asks separately, and uses the error in its own message
    except Exception:
        fields = {"broker": asked.link.name, "topic": last.topic, "count": len(batch)}
        sentence = "could not settle %(count)s sends on broker %(broker)s, one of them to topic %(topic)s"
        logger.exception(sentence, fields, extra=fields)
        return None
