"""The sends of `mqdb send`: in batches if possible, in order if needed.

Messages without a sharding key are sent in batches, each to one queue and stored completely or not at all. Messages
with a sharding key or a later delivery time are sent individually from several threads: the messages of each key stay
in order, and the client combines the sends.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from mqdb.cli.records import Outgoing
from mqdb.cli.sharing import in_order_by_key
from mqdb.common.delivery_schedule import schedule_of
from mqdb.common.message import Message
from mqdb.errors import MqdbError

if TYPE_CHECKING:
    from mqdb.settings import Settings

GROUP = "mqdb-send"

#: Up to this many messages, their ids are printed; for more messages, a summary.
MAX_IDS = 10

_THREADS = 8


class SendStopped(MqdbError):
    """Sending ended early, after some messages were stored."""

    reason: str
    sent: int
    sentence = "{reason}; {sent:,} messages were sent before"


class Sender:
    """Sends messages, counts those acknowledged, and prints ids: immediately with `shows_ids`, otherwise at the end."""

    def __init__(self, settings: "Settings", topic: str, *, shows_ids: bool) -> None:
        from mqdb_client import Producer

        self.sent = 0
        self._topic = topic
        self._shows_ids = shows_ids
        self._ids: list[str] = []
        self._producer = Producer(GROUP, settings=settings)
        self._started = 0.0

    def __enter__(self) -> Self:
        self._producer.start()
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.shutdown()

    def send(self, messages: Sequence[Outgoing]) -> None:
        """Send messages that have passed `check_message`."""
        if any(each.sharding_key is not None or schedule_of(each.message.system_properties) for each in messages):
            self._report(in_order_by_key(messages, _key, self._send_one, _THREADS))
        elif len(messages) == 1:
            self._report([self._send_one(messages[0])])
        else:
            self._send_in_batches([each.message for each in messages])

    def _send_in_batches(self, messages: Sequence[Message]) -> None:
        from mqdb_client.producer.sends.batch import split_batches

        for batch in split_batches(messages):
            results = self._producer.send_batch(batch)
            self.sent += len(results)
            self._report([result.message_id for result in results])

    def _send_one(self, outgoing: Outgoing) -> str:
        result = self._producer.send(outgoing.message, sharding_key=outgoing.sharding_key)
        self.sent += 1
        return result.message_id

    def _report(self, message_ids: Sequence[str]) -> None:
        for message_id in message_ids:
            if self._shows_ids:
                print(message_id, flush=True)
            elif len(self._ids) < MAX_IDS:
                self._ids.append(message_id)

    @contextmanager
    def telling_what_was_sent(self) -> Iterator[None]:
        """Raise SendStopped, with the number of sent messages, for an error after the first message."""
        try:
            yield
        except MqdbError as exc:
            if not self.sent:
                raise
            raise SendStopped(str(exc), self.sent) from exc

    def summarize(self) -> None:
        """Print the ids if there are few messages, otherwise their number."""
        if self._shows_ids:
            return
        if self.sent <= MAX_IDS:
            print("".join(f"{message_id}\n" for message_id in self._ids), end="")
            return
        seconds = time.monotonic() - self._started
        rate = self.sent / max(seconds, 1e-9)
        print(f"sent {self.sent:,} messages to topic {self._topic} in {seconds:.2f} s ({rate:,.0f}/s)")


def _key(outgoing: Outgoing) -> object:
    """The key by which messages stay in order; messages without a sharding key are independent."""
    return id(outgoing) if outgoing.sharding_key is None else outgoing.sharding_key
