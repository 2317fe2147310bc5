"""Consume pace: the number of messages that the listeners of a member consume in a tenth of a second."""

from typing import Final

#: A message that another member could consume waits no longer than this, if messages take about the same time.
_SPAN_SECONDS: Final = 0.1


class ConsumePace:
    """Counts consumed messages over spans of a tenth of a second or more. Not thread-safe."""

    def __init__(self, now: float) -> None:
        """`now`, here and below, is in seconds of a monotonic clock."""
        self._began = now
        self._count = 0
        self._messages = 0

    def count(self, messages: int) -> None:
        """Add consumed messages to the count."""
        self._count += messages

    def messages(self, now: float) -> int:
        """The messages consumed per tenth of a second, as measured over the last span."""
        seconds = now - self._began
        if seconds >= _SPAN_SECONDS:
            self._messages = round(self._count * _SPAN_SECONDS / seconds)
            self._began, self._count = now, 0
        return self._messages
