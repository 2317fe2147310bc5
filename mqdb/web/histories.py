"""Histories: how often the log of a broker has had another history than before, as this process has seen it."""

from mqdb.store.log.history import History


class Histories:
    """The histories that connections of this process have met. One thread notes them, any may read."""

    def __init__(self) -> None:
        self.changes = 0
        self._last: History | None = None

    def note(self, history: History) -> None:
        """A connection has met this history."""
        self.changes += self._last not in (None, history)
        self._last = history
