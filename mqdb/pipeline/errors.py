"""Errors of the pipeline, below MqdbError like all others.

    MqdbError
    ├── OptionUnknown             an option that the data source does not have
    ├── OptionInvalid             an option with a value that cannot be used, or two that exclude each other
    ├── ModeNotSupported          a save mode or output mode that a log cannot have
    ├── ColumnInvalid             a column of a written DataFrame that no message has, or with a wrong type
    ├── OffsetOutOfRange          an offset asked for that the queue does not hold
    ├── DataLoss                  messages were dropped before they could be read
    │   └── LogReplaced           the log is not the one that a stream has read
    ├── SegmentDropped            retention has dropped a segment that was to be counted
    ├── ReplicaBehind             a replica has not caught up in time
    ├── StreamUnreadable          an offset of a checkpoint that this source has not written
    ├── SinkBatchMismatch         what was staged is not what the tasks have written
    ├── SinkBatchesMissing        batches that a query has written are not in the database
    ├── ArchiveBusy               somebody else archives the segments of this broker
    ├── ArchiveMismatch           what was read back from an archive is not what the broker has
    ├── ArchiveIncomplete         messages that no archived segment has
    ├── JobFailed                 a job that Spark gave up, with what it says
    ├── ExtraMissing              a library of mqdb[spark] that is not installed
    ├── JavaNotFound
    ├── JarNotFound               no JDBC driver of PostgreSQL
    └── JarMismatch               a fetched JDBC driver that is not the one whose checksum is known

Each of them pickles: workers raise them, and the driver shows them.
"""

from collections.abc import Sequence
from difflib import get_close_matches

from mqdb.errors import MqdbError, ResponseCode, shown


class OptionUnknown(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An option that there is none of. `known` are those there are."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(name, tuple(known))
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        by_lower_case = {each.lower(): each for each in self.known}
        near = get_close_matches(self.name.lower(), by_lower_case, n=1)
        hint = f"; did you mean {by_lower_case[near[0]]!r}?" if near else "."
        return f"unknown option {shown(self.name)}{hint} There are: {', '.join(self.known)}"


class OptionInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An option with a value that cannot be used. `value` holds no password."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name = name
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        given = "" if self.value is None else f" = {shown(self.value)}"
        return f"option {self.name}{given}: {self.reason}"


class ModeNotSupported(MqdbError, code=ResponseCode.ILLEGAL_OPERATION):
    """A save mode, or an output mode of a stream, that a log cannot have."""

    def __init__(self, mode: str, reason: str) -> None:
        super().__init__(mode, reason)
        self.mode = mode
        self.reason = reason

    def __str__(self) -> str:
        return f"mode {self.mode!r} is not supported: {self.reason}"


class ColumnInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A column of a DataFrame to be written that a message has no place for, or with a type that does not fit."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f"column {shown(self.column)}: {self.reason}"


class OffsetOutOfRange(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An offset to start or end at that the queue does not hold: below `min_offset`, or above `max_offset`."""

    def __init__(self, option: str, topic: str, queue_id: int, offset: int, min_offset: int, max_offset: int) -> None:
        super().__init__(option, topic, queue_id, offset, min_offset, max_offset)
        self.option = option
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __str__(self) -> str:
        return (
            f"{self.option}: offset {self.offset:,} of topic {self.topic!r}, queue {self.queue_id}, is not stored; "
            f"the queue has offsets from {self.min_offset:,} to before {self.max_offset:,}"
        )


class DataLoss(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Messages that were to be read are gone. Raised unless failOnDataLoss is false."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"data loss: {self.what}: {self.reason}; set failOnDataLoss=false to read what is left"


class LogReplaced(DataLoss, code=ResponseCode.SYSTEM_ERROR):
    """The log has not the message that a stream's checkpoint remembers. Raised unless failOnDataLoss is false.

    The database went back, or is another one, so nobody knows which messages at that offset and before it are new.
    """

    def __str__(self) -> str:
        return (
            f"another log: {self.what}: {self.reason}; the database was restored, or another one has taken its place. "
            "Begin with a new checkpoint, and say in startingOffsets or startingTimestamp where; or set "
            "failOnDataLoss=false to read each such queue from its first message"
        )


class SegmentDropped(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Retention has dropped a segment between the plan of a job and its task."""

    def __init__(self, segment: int) -> None:
        super().__init__(segment)
        self.segment = segment

    def __str__(self) -> str:
        return f"segment {self.segment} was dropped by retention before it could be counted; run it again"


class ReplicaBehind(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The server that is read from has not got the messages yet that were planned on another one."""

    def __init__(self, what: str, wanted: int, reached: int, waited_seconds: float) -> None:
        super().__init__(what, wanted, reached, waited_seconds)
        self.what = what
        self.wanted = wanted
        self.reached = reached
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return (
            f"the replica is behind: {self.what} is to be read up to offset {self.wanted:,}, and ends at "
            f"{self.reached:,} after {self.waited_seconds:g} s (option replicaWaitSeconds)"
        )


class StreamUnreadable(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An offset of a stream's checkpoint that this source cannot have written."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return f"offsets {shown(self.text)} of the checkpoint cannot be read: {self.reason}"


class SinkBatchMismatch(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Other rows are staged than the tasks have written, so nothing was appended. Run the batch again."""

    def __init__(self, sink_id: str, batch_id: int, expected: int, found: int) -> None:
        super().__init__(sink_id, batch_id, expected, found)
        self.sink_id = sink_id
        self.batch_id = batch_id
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"batch {self.batch_id} of sink {self.sink_id!r} has {self.found:,} messages staged, its tasks wrote "
            f"{self.expected:,}; nothing was appended (a crash of PostgreSQL empties the stage): run the batch again"
        )


class SinkBatchesMissing(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """The ledger of a sink ends at `newest` (None: it has no batch), so batches before `batch_id` are not in the log.

    Raised unless failOnDataLoss is false. Nothing was appended.
    """

    def __init__(self, sink_id: str, batch_id: int, newest: int | None) -> None:
        super().__init__(sink_id, batch_id, newest)
        self.sink_id = sink_id
        self.batch_id = batch_id
        self.newest = newest

    @property
    def what(self) -> str:
        """What is missing, for a sentence."""
        first = 0 if self.newest is None else self.newest + 1
        return f"batches {first} to {self.batch_id - 1} of sink {self.sink_id!r} are not in the database"

    def __str__(self) -> str:
        return (
            f"{self.what}, and batch {self.batch_id} comes next: the database was restored, or another one has taken "
            "its place, or the query has written elsewhere before. Nothing was appended. Begin with a new checkpoint "
            "that reads their rows again; or set failOnDataLoss=false to go on without them"
        )


class ArchiveBusy(MqdbError, code=ResponseCode.SYSTEM_BUSY):
    """Another process archives the segments of this broker: two would write them twice."""

    def __str__(self) -> str:
        return "another process is archiving the segments of this broker; wait until it has ended"


class ArchiveMismatch(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """The files of a segment do not hold what the broker has, so the segment does not count as archived."""

    def __init__(self, segment: int, topic: str, queue_id: int, expected: str, found: str) -> None:
        super().__init__(segment, topic, queue_id, expected, found)
        self.segment = segment
        self.topic = topic
        self.queue_id = queue_id
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"the archive of segment {self.segment} does not agree with the broker: of topic {self.topic!r}, queue "
            f"{self.queue_id}, it has {self.found} in place of {self.expected}; the segment does not count as archived"
        )


class ArchiveIncomplete(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """Offsets `first` to before `past` of a queue are in no archived segment."""

    def __init__(self, topic: str, queue_id: int, first: int, past: int) -> None:
        super().__init__(topic, queue_id, first, past)
        self.topic = topic
        self.queue_id = queue_id
        self.first = first
        self.past = past

    def __str__(self) -> str:
        return (
            f"of topic {self.topic!r}, queue {self.queue_id}, offsets {self.first:,} to before {self.past:,} are in no "
            "archived segment; choose other offsets or times, or allow gaps"
        )


class JobFailed(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Spark gave a job up. `reason` is one line; Spark's own error, with its traces, is in `__cause__`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ExtraMissing(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """A library that only the pipeline needs is not installed."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.library = library

    def __str__(self) -> str:
        return f'{self.library} is not installed; run: pip install "mqdb[spark]"'


class JavaNotFound(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """Spark needs a Java runtime, and none was found that it runs on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no Java 17 or newer found: {self.reason}; install a JDK, set JAVA_HOME, "
            'or run: pip install "mqdb[spark]", which brings one'
        )


class JarNotFound(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The JDBC driver of PostgreSQL was found nowhere. `places` are those that were looked at."""

    def __init__(self, places: Sequence[str]) -> None:
        super().__init__(tuple(places))
        self.places = tuple(places)

    def __str__(self) -> str:
        return (
            f"no JDBC driver of PostgreSQL in {', '.join(self.places)}; give jar=PATH, set MQDB_PG_JAR, "
            "install libpostgresql-jdbc-java, or set spark.jars.packages=org.postgresql:postgresql:42.7.7"
        )


class JarMismatch(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The JDBC driver that was fetched is another file than the one that mqdb was tested with. It is not used."""

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(path, expected, found)
        self.path = path
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        remedy = "it is not used; remove it, or give jar=PATH"
        return f"{self.path} has SHA-256 {self.found}, and not {self.expected}: {remedy}"
