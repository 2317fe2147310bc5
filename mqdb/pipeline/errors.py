"""Errors of the pipeline, all subclasses of MqdbError.

    MqdbError
    ├── OptionUnknown             an option that the data source does not have
    ├── OptionInvalid             an option with a value that cannot be used, or two that exclude each other
    ├── ModeNotSupported          a save mode or output mode that a log does not support
    ├── ColumnInvalid             a column of a written DataFrame that messages do not have, or with a wrong type
    ├── OffsetOutOfRange          a requested offset that the queue does not have
    ├── DataLoss                  messages were dropped before they could be read
    │   ├── LogReplaced           the log is not the one that the stream was reading
    │   └── DatabaseReplaced      the database is not the one that the stream was reading
    ├── SegmentDropped            retention has dropped a segment that was to be counted
    ├── ReplicaBehind             a replica has not caught up in time
    ├── BodyNotDecoded            a body that does not fit the schema of a read
    ├── StreamUnreadable          a checkpoint offset that this source did not write
    ├── SinkBatchMismatch         the staged rows are not those that the tasks wrote
    ├── SinkBatchesMissing        batches that a query has written are not in the database
    ├── SinkBatchChanged          a batch for several brokers that is rerun with other rows for one of them
    ├── SinkBrokerMissing         a broker to which a sink has written but that is not in the url
    ├── SinkRowInvalid            a row of a written DataFrame that no broker would store
    ├── ArchiveBusy               another process archives the segments of this broker
    ├── ArchiveMismatch           the files of an archive do not match the broker's messages
    ├── ArchiveIncomplete         messages that no archived segment has
    ├── TableUnusable             a table to which a topic cannot be written
    ├── MessageUnusable           a message that cannot become a row of a table
    ├── TableBatchesMissing       batches that a job has written are not in the table
    ├── JobFailed                 a job that Spark gave up, with its reason
    ├── JavaNotFound
    ├── JarNotFound               no JDBC driver of PostgreSQL
    └── JarMismatch               a fetched JDBC driver without the expected checksum

All of them can be pickled: workers raise them, and the driver shows them.
"""

from collections.abc import Sequence
from difflib import get_close_matches

from mqdb.errors import MqdbError, ResponseCode, shown


class OptionUnknown(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An unknown option. `known` has the names of all options."""

    name: str
    known: Sequence[str]
    sentence = "unknown option {name!r}{hint} There are: {known!l}"

    @property
    def hint(self) -> str:
        """The known option that is most similar to the unknown one, if any."""
        by_lower_case = {each.lower(): each for each in self.known}
        near = get_close_matches(self.name.lower(), by_lower_case, n=1)
        return f"; did you mean {by_lower_case[near[0]]!r}?" if near else "."


class OptionInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An option with a value that cannot be used. `value` never contains a password."""

    name: str
    value: object
    reason: str
    sentence = "option {name}{given}: {reason}"

    @property
    def given(self) -> str:
        """The value after an equals sign, if there is a value."""
        return "" if self.value is None else f" = {shown(self.value)}"


class ModeNotSupported(MqdbError, code=ResponseCode.ILLEGAL_OPERATION):
    """A save mode, or an output mode of a stream, that a log does not support."""

    mode: str
    reason: str
    sentence = "mode {mode!r} is not supported: {reason}"


class ColumnInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A column of a written DataFrame that is not part of a message, or has the wrong type."""

    column: str
    reason: str
    sentence = "column {column!r}: {reason}"


class OffsetOutOfRange(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A start or end offset that the queue does not have: below `min_offset`, or above `max_offset`."""

    option: str
    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int
    sentence = (
        "{option}: offset {offset:,} of topic {topic!r}, queue {queue_id}, is not stored; the queue has offsets from "
        "{min_offset:,} to before {max_offset:,}"
    )


class DataLoss(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Messages that were to be read are gone. Raised unless failOnDataLoss is false."""

    what: str
    reason: str
    sentence = "data loss: {what}: {reason}; set failOnDataLoss=false to read what is left"


class LogReplaced(DataLoss, code=ResponseCode.SYSTEM_ERROR):
    """The log does not have the message recorded in a stream's checkpoint. Raised unless failOnDataLoss is false.

    The database was set back, so it is unknown which messages up to that offset are new.
    """

    sentence = (
        "another log: {what}: {reason}; the database was restored, or a standby with fewer messages was promoted. "
        "Begin with a new checkpoint, and give the starting point in startingOffsets or startingTimestamp; or set "
        "failOnDataLoss=false to read each such queue from its first message"
    )


class DatabaseReplaced(DataLoss, code=ResponseCode.SYSTEM_ERROR):
    """The broker named in a stream's checkpoint is now in a database that was created at another time.

    Raised unless failOnDataLoss is false. A restored database or a copy has the same creation time as its original.
    """

    sentence = (
        "another database: {what}: {reason}. Give the url of the original database; or begin with a new checkpoint; "
        "or set failOnDataLoss=false to read each queue from its first message"
    )


class SegmentDropped(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Retention dropped a segment between the planning of a job and its task."""

    segment: int
    sentence = "segment {segment} was dropped by retention before it could be counted; run the job again"


class ReplicaBehind(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The server being read does not yet have the messages that were planned on another server."""

    what: str
    wanted: int
    reached: int
    waited_seconds: float
    sentence = (
        "the replica is behind: {what} has to be read up to offset {wanted:,}, but ends at {reached:,} after "
        "{waited_seconds:g} s (option replicaWaitSeconds)"
    )


class BodyNotDecoded(MqdbError, code=ResponseCode.MESSAGE_ILLEGAL):
    """The body of a message is not JSON, or does not fit the option schema. Raised unless onBadRow allows it."""

    topic: str
    queue_id: int
    queue_offset: int
    reason: str
    sentence = "topic {topic!r}, queue {queue_id}, offset {queue_offset:,}: {reason} (option onBadRow)"


class StreamUnreadable(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An offset of a stream's checkpoint that this source cannot have written."""

    text: str
    reason: str
    sentence = "offsets {text!r} of the checkpoint cannot be read: {reason}"


class SinkBatchMismatch(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """The staged rows are not those that the tasks wrote, so nothing was appended. Run the batch again."""

    sink_id: str
    batch_id: int
    expected: int
    found: int
    sentence = (
        "batch {batch_id} of sink {sink_id!r} has {found:,} messages staged, but its tasks wrote {expected:,}; "
        "nothing was appended (a crash of PostgreSQL empties the stage): run the batch again"
    )


class SinkBatchesMissing(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """The ledger of a sink ends at `newest` (None: it is empty), so batches before `batch_id` are not in the log.

    Raised unless failOnDataLoss is false. Nothing was appended.
    """

    sink_id: str
    batch_id: int
    newest: int | None

    @property
    def what(self) -> str:
        """The missing batches, as part of a sentence."""
        first = 0 if self.newest is None else self.newest + 1
        return f"batches {first} to {self.batch_id - 1} of sink {self.sink_id!r} are not in the database"

    sentence = (
        "{what}, and batch {batch_id} comes next: the database was restored or replaced, or the query wrote elsewhere "
        "before. Nothing was appended. Begin with a new checkpoint that reads their rows again; or set "
        "failOnDataLoss=false to continue without them"
    )


class SinkBatchChanged(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """A broker already has this batch, but with other rows. Nothing was appended.

    Raised unless failOnDataLoss is false. `messages` is the number in the broker's log, `expected` the number that
    would go there now.
    """

    broker: str
    sink_id: str
    batch_id: int
    messages: int
    expected: int
    sentence = (
        "batch {batch_id} of sink {sink_id!r} is already in broker {broker!r}, but differs from this run: "
        "{messages:,} messages are stored, {expected:,} would be written now. The rows, the queues of a topic, or the "
        "brokers of the url have changed. Nothing was appended to any broker. Run it unchanged; another batch job "
        "needs another writeId; or set failOnDataLoss=false to append the rest as it is now, in which case rows may "
        "be lost or duplicated"
    )


class SinkBrokerMissing(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A sink has written to a broker that is not in the url, so the batch may already be there.

    Raised unless failOnDataLoss is false. Nothing was appended.
    """

    broker: str
    sink_id: str
    batch_id: int
    sentence = (
        "sink {sink_id!r} has written to broker {broker!r}, which the url does not name, and a part of batch "
        "{batch_id} may already be stored there. Nothing was appended. Name the broker; or set failOnDataLoss=false "
        "to continue without it"
    )


class SinkRowInvalid(MqdbError, code=ResponseCode.MESSAGE_ILLEGAL):
    """A row of a DataFrame that cannot become a message. `row` counts from 1 in its task, `task` as Spark does, from 0.

    `column` is the faulty column, or several columns that may be faulty. The error caused by the row is in `__cause__`.
    """

    row: int
    task: int
    key: bytes | str | None
    column: str
    reason: str
    sentence = "row {row:,} of task {task}, {whose}, column {column}: {reason}"

    @property
    def whose(self) -> str:
        """The key of the row, as part of a sentence."""
        return "without a key" if self.key is None else f"key {shown(self.key)}"


class ArchiveBusy(MqdbError, code=ResponseCode.SYSTEM_BUSY):
    """Another process is archiving the segments of this broker. Two processes would archive them twice."""

    sentence = "another process is archiving the segments of this broker; wait until it has ended"


class ArchiveMismatch(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """The files of a segment do not match the broker's messages, so the segment does not count as archived."""

    segment: int
    topic: str
    queue_id: int
    expected: str
    found: str
    sentence = (
        "the archive of segment {segment} does not match the broker: for topic {topic!r}, queue {queue_id}, it has "
        "{found} instead of {expected}; the segment does not count as archived"
    )


class ArchiveIncomplete(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """Offsets from `first` to before `past` of a queue are missing in the archived segments."""

    topic: str
    queue_id: int
    first: int
    past: int
    sentence = (
        "topic {topic!r}, queue {queue_id}, offsets {first:,} to before {past:,} are in no archived segment; choose "
        "other offsets or times, or allow gaps"
    )


class TableUnusable(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A PostgreSQL table to which messages cannot be written."""

    table: str
    reason: str
    sentence = "table {table!r} cannot be written: {reason}"


class MessageUnusable(MqdbError, code=ResponseCode.MESSAGE_ILLEGAL):
    """A message that cannot become a row of a table."""

    topic: str
    queue_id: int
    offset: int
    reason: str
    sentence = (
        "the message at offset {offset:,} of topic {topic!r}, queue {queue_id}, cannot become a row: {reason}; "
        "correct the topic, or skip such messages"
    )


class TableBatchesMissing(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """The ledger beside a table ends at `newest` (-1: it is empty), so batches before `batch_id` are missing."""

    table: str
    batch_id: int
    newest: int
    sentence = (
        "batch {batch_id} comes next for table {table!r}, which has {what}: its database was restored, or the "
        "checkpoint is that of another table. Begin with a new checkpoint"
    )

    @property
    def what(self) -> str:
        """The batches in the table, as part of a sentence."""
        return "no batch" if self.newest < 0 else f"batches up to {self.newest}"


class JobFailed(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Spark gave up on a job. `reason` is one line; Spark's error, with its traces, is in `__cause__`."""

    reason: str
    sentence = "{reason}"


class JavaNotFound(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """Spark needs a Java runtime, and no suitable one was found."""

    reason: str
    sentence = (
        'no Java 17 or newer found: {reason}; install a JDK, set JAVA_HOME, or run: pip install "mqdb[spark]", which '
        "includes one"
    )


class JarNotFound(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The JDBC driver of PostgreSQL was not found. `places` are the places that were searched."""

    places: Sequence[str]
    sentence = (
        "no PostgreSQL JDBC driver in {places!l}; give jar=PATH, set MQDB_PG_JAR, install libpostgresql-jdbc-java, or "
        "set spark.jars.packages=org.postgresql:postgresql:42.7.7"
    )


class JarMismatch(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The fetched JDBC driver is not the file with which mqdb was tested. The file is not used."""

    path: str
    expected: str
    found: str
    sentence = "{path} has SHA-256 {found} instead of {expected}: it is not used; remove it, or give jar=PATH"
