"""The log and its segments. The settings of `mqdb serve` say how long it is kept."""

from mqdb.store.segments import partitions, segments
from mqdb.store.segments.partitions import SegmentSize
from mqdb.store.segments.segments import Log, Segment
from mqdb_client.admin.subject import Subject


class Retention(Subject):
    """The segments of a broker's log. Retention drops whole segments, the oldest first."""

    def log(self) -> Log:
        """The log as a whole: the time, the last position, and how many records the next segment will hold."""
        with self._access.connected() as connection:
            return segments.log(connection)

    def segments(self) -> list[Segment]:
        """All segments, the oldest first: their positions, their state, and when they were closed."""
        with self._access.connected() as connection:
            return segments.find_all(connection)

    def sizes(self) -> list[SegmentSize]:
        """The bytes of each segment, the oldest first. It reads the size of each of their files."""
        with self._access.connected() as connection:
            return partitions.sizes(connection)

    def oldest_seconds(self) -> float | None:
        """The age of the oldest record of the log; None if the log is empty."""
        with self._access.connected() as connection:
            return segments.oldest_seconds(connection)
