"""Unique ids: the id that a client gives to a message, which stays the same for all retries.

    IPv4 address   process id   salt      milliseconds since the month began   counter
    4 bytes        2 bytes      4 bytes   4 bytes                              2 bytes

The layout is RocketMQ's, with the salt instead of a class loader's hash, and the month in UTC.
People see 32 upper-case hexadecimal digits, the database a uuid. The database finds records by the milliseconds in
their ids (`mqdb/sql/log/unique_id_ms.sql`).

Ids are unique within a process, even if the clock jumps, and without a lock: each thread counts separately with its own
salt, and takes a new salt when the month starts over. The address, the process id and the random first salt distinguish
processes; a forked child draws a new salt. RocketMQ: MessageClientIDSetter.
"""

import itertools
import os
import re
import secrets
import socket
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import md5
from typing import Final

from mqdb.common.clock import Clock, SystemClock
from mqdb.errors import ParameterInvalid

_MILLISECOND: Final = timedelta(milliseconds=1)
_UNIQUE_ID = re.compile("(?:01)?([0-9A-Fa-f]{32})")

#: Any address outside the local network will do; nothing is sent to it. Source: RFC 5737.
_FAR_AWAY: Final = ("192.0.2.1", 9)

_salts: Iterator[int]


def _draw_salts() -> None:
    global _salts
    _salts = itertools.count(secrets.randbits(32))


_draw_salts()
os.register_at_fork(after_in_child=_draw_salts)


class UniqueIdGenerator(threading.local):
    """Makes unique ids. Thread-safe, also after a fork."""

    # threading.local runs __init__ again, with the same clock, in each new thread. A thread's counter is a separate
    # object, because each attribute access on a threading.local costs a lookup of the thread.
    def __init__(self, clock: Clock | None = None) -> None:
        self._series = _Series(clock or SystemClock())

    def next(self) -> uuid.UUID:
        """A new id, which this process has never made before."""
        return self._series.take(1)[0]

    def take(self, count: int, now: datetime | None = None) -> list[uuid.UUID]:
        """Make `count` ids, at least one, for a batch. The clock is read once, unless the caller gives `now`."""
        return self._series.take(count, now)


class _Series:
    """The ids of one thread."""

    __slots__ = ("_clock", "_month", "_next_month", "_number", "_prefix", "_salts")

    _number: int
    _prefix: int

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin(clock.now())

    def take(self, count: int, now: datetime | None = None) -> list[uuid.UUID]:
        now = now or self._clock.now()
        if now >= self._next_month or self._salts is not _salts:
            self._begin(now)
        # When the clock stops or steps back, or 65,536 ids were made within a millisecond, the counter overflows into
        # the milliseconds, so the number always rises.
        number = max(self._number + 1, (now - self._month) // _MILLISECOND << 16)
        self._number = number + count - 1
        first = self._prefix | number
        if count == 1:
            return [uuid.UUID(int=first)]
        return [uuid.UUID(int=each) for each in range(first, first + count)]

    def _begin(self, now: datetime) -> None:
        self._salts = _salts
        self._month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        self._next_month = (self._month + timedelta(days=31)).replace(day=1)
        self._number = -1
        process_id = os.getpid() & 0xFFFF
        salt = next(_salts) & 0xFFFF_FFFF
        self._prefix = int.from_bytes(_address()) << 96 | process_id << 80 | salt << 48


def format_unique_id(unique_id: uuid.UUID) -> str:
    """The text of an id for people: 32 upper-case hexadecimal digits."""
    return f"{unique_id.int:032X}"


def parse_unique_id(text: object) -> uuid.UUID:
    """The inverse of `format_unique_id`; also accepts lower case, and the 34 digits of RocketMQ 5's SDKs.

    Raises ParameterInvalid for anything else.
    """
    if not isinstance(text, str) or not (found := _UNIQUE_ID.fullmatch(text)):
        raise ParameterInvalid("message id", text, "must be 32 hexadecimal digits, or 34 of which the first are 01")
    return uuid.UUID(hex=found[1])


def unique_id_of(text: str) -> uuid.UUID:
    """The uuid for the id of any client: 32 hexadecimal digits are a uuid; for any other string its MD5 is used.

    RocketMQ 5's SDKs put 01, the version of their ids, before these digits. Java clients with an IPv6 address create
    ids of 56 digits, and other clients may use any string.
    """
    if found := _UNIQUE_ID.fullmatch(text):
        return uuid.UUID(hex=found[1])
    return uuid.UUID(bytes=md5(text.encode(), usedforsecurity=False).digest())


def local_address() -> str | None:
    """The IPv4 address from which this machine reaches other machines; None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def _address() -> bytes:
    address = local_address()
    # Machines without a route would all be 127.0.0.1. In this case RocketMQ makes up an address.
    return socket.inet_aton(address) if address else secrets.token_bytes(4)
