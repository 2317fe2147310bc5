"""The log and its segments. The settings of `mqdb serve` determine how long the log is kept."""

from mqdb.store.segments import partitions, segments
from mqdb.store.segments.partitions import SegmentSize
from mqdb.store.segments.segments import Log, Segment
from mqdb_client.admin.subject import Subject


class Retention(Subject):
    """The segments of a broker's log. Retention drops whole segments, oldest first."""

    def log(self) -> Log:
        """The log as a whole: the time, the last position, and the size of the next segment in records."""
        with self._access.connected() as connection:
            return segments.log(connection)

    def segments(self) -> list[Segment]:
        """All segments, oldest first, with their positions, their state, and when they were closed."""
        with self._access.connected() as connection:
            return segments.find_all(connection)

    def sizes(self) -> list[SegmentSize]:
        """The size of each segment in bytes, oldest first. This call reads the size of each file."""
        with self._access.connected() as connection:
            return partitions.sizes(connection)

    def oldest_seconds(self) -> float | None:
        """The age of the oldest record of the log; None if the log is empty."""
        with self._access.connected() as connection:
            return segments.oldest_seconds(connection)
