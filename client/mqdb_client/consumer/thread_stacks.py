"""Thread stacks: where the threads of listeners are right now. A listener that hangs is told by its stack."""

import sys
import threading
import traceback


def stack_of(thread_id: int) -> str | None:
    """The Python stack of a thread of this process, the innermost call last; None when it has ended."""
    frame = sys._current_frames().get(thread_id)
    return None if frame is None else "".join(traceback.format_stack(frame))


def name_of(thread_id: int) -> str | None:
    """The name of a thread of this process; None when it has ended."""
    return next((thread.name for thread in threading.enumerate() if thread.ident == thread_id), None)
