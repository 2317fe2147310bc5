"""Waiting tasks: requests of a connection that may wait for messages, and end with the connection."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mqdb.errors import TooManyWaiting
from mqdb.remoting.session.connection import Connection

#: Maximum for one connection: a client has one pull for each of its queues.
MOST_HELD: Final = 2_048


class WaitingTasks:
    """The waiting tasks for one kind of request. Call it from the event loop only."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tasks: defaultdict[Connection, set[asyncio.Task[Any]]] = defaultdict(set)

    def lost(self, connection: Connection) -> None:
        """Cancel the tasks of a closed connection."""
        for task in self._tasks.pop(connection, ()):
            task.cancel()

    @contextmanager
    def of(self, connection: Connection) -> Iterator[None]:
        """Count the current task as one of a connection's tasks.

        Raises TooManyWaiting if the connection has too many.
        """
        # Nothing would remove the task of a connection that has been closed since.
        tasks = self._tasks[connection] if connection.is_open else set()
        if len(tasks) >= MOST_HELD:
            raise TooManyWaiting(len(tasks), f"{self._kind} of this connection")
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            yield
        finally:
            tasks.discard(task)
