"""Histories: the number of times that this process has found the log of its broker with a different history."""

from mqdb.store.log.history import History


class Histories:
    """Counts changes of the history that connections of this process find. One thread writes, any thread may read."""

    def __init__(self) -> None:
        self.changes = 0
        self._last: History | None = None

    def note(self, history: History) -> None:
        """Note the history that a connection has found."""
        self.changes += self._last not in (None, history)
        self._last = history
