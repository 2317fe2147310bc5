"""The publisher of the demo: first at full speed, then at a steady rate."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mqdb.cli.demo.account import Sent
from mqdb.cli.demo.flights import Flight
from mqdb.cli.sharing import in_order_by_key

if TYPE_CHECKING:
    from mqdb_client import Producer


class Part(NamedTuple):
    """What was sent, in the order of the flights, and how long that took."""

    sent: list[Sent]
    seconds: float


class Publisher:
    """Sends flights and counts them."""

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer
        self._acknowledged: list[Sent] = []

    @property
    def count(self) -> int:
        """How many have been sent so far."""
        return len(self._acknowledged)

    def at_full_speed(self, flights: Sequence[Flight], threads: int) -> Part:
        """From several threads, each with aircraft of its own: the flights of an aircraft stay in order."""
        started = time.monotonic()
        sent = in_order_by_key(flights, lambda flight: flight.sharding_key, self._send, threads)
        return Part(sent, time.monotonic() - started)

    def at_a_rate(self, flights: Sequence[Flight], per_second: int) -> Part:
        """One after the other, each when its time has come; a late one does not delay the next."""
        started = time.monotonic()
        sent = []
        for number, flight in enumerate(flights):
            pause = started + number / per_second - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            sent.append(self._send(flight))
        return Part(sent, time.monotonic() - started)

    def _send(self, flight: Flight) -> Sent:
        started = time.monotonic()
        result = self._producer.send(flight.message, sharding_key=flight.sharding_key)
        sent = Sent(result.message_id, flight.message.tag, flight.message.body, flight.sharding_key, started)
        self._acknowledged.append(sent)
        return sent
