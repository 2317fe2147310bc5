"""The mark of a broker that is starting in a home: a lock that it holds until clients can connect.

Before that, its database may be missing, starting, or without a schema, which would give clients confusing errors.
Clients test it with a shared lock, so that two testing clients do not see each other; the kernel releases the lock of a
killed broker.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mqdb.embedded import home as homes
from mqdb.embedded.account import service_account
from mqdb.embedded.home import Home
from mqdb.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

#: The longest time that a client waits for a starting broker.
PATIENCE_SECONDS = 10.0

#: The longest time that a client holds the lock for a test. A file lock has no wait with a timeout, so it is polled.
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.01


@contextmanager
def mark_starting(home: Home) -> Iterator[None]:
    """Mark the home while a broker starts in it. If another broker is starting as well, its mark serves for both."""
    homes.create(home, service_account())
    with homes.refusing(home.path):
        descriptor = os.open(home.starting_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _LOOK_SECONDS
        while not _try_lock(descriptor, is_shared=False) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def is_starting(home: Home) -> bool:
    """Whether a broker is starting there now.

    False if this is not visible, because the home belongs to another user.
    """
    try:
        descriptor = os.open(home.starting_file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def wait_while_starting(home: Home) -> None:
    """Return when no broker is starting in the home. Raises BrokerUnavailable after PATIENCE_SECONDS."""
    if not is_starting(home):
        return
    fields = {"home": str(home.path)}
    logger.warning("waiting for a broker that is starting in home %(home)s", fields, extra=fields)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_starting(home):
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                str(home.path), "a broker is starting in this home, but is not ready yet; try again"
            )
        time.sleep(_POLL_SECONDS)


def _try_lock(descriptor: int, *, is_shared: bool) -> bool:
    import fcntl  # imported here: the module is missing on Windows, where this module must still be importable

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
