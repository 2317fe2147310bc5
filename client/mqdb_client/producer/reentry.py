"""Reentry: a thread that comes where it is already.

A signal handler, or a finalizer that the garbage collector calls, runs in the midst of what its thread is doing. If it
sends, and the thread was about to send as well, it would wait for a lock that the thread itself holds.
"""

import threading

from mqdb.errors import IllegalState


def refuse_reentry(guard: "threading.RLock") -> None:
    """Raise IllegalState where this thread holds the guard."""
    if guard._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks it
        raise IllegalState("this thread", "in the midst of another send, which was interrupted for this one")
