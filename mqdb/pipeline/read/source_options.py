"""Options of a read with format("mqdb"): parses them, with one clear error for each invalid option.

Names and rules are those of Spark's Kafka source if it has them; names are case-insensitive, as in Spark. This module
imports little, because workers import it with the reader that Spark sends them.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mqdb.errors import MqdbError
from mqdb.pipeline import broker_wait
from mqdb.pipeline.errors import OptionInvalid, OptionUnknown
from mqdb.pipeline.kafka_options import is_of_kafka, refuse_servers, warn_of_ignored
from mqdb.pipeline.read import body_schema
from mqdb.pipeline.read.body_schema import BodyDecoding, OnBadBody
from mqdb.pipeline.read.positions import (
    EARLIEST,
    LATEST,
    Position,
    parse_assign,
    parse_offsets,
    parse_time,
    parse_times,
)
from mqdb.pipeline.read.schema import RowFormat, columns_of, sources_of

logger = logging.getLogger(__name__)

#: The largest part of a segment or queue that one task reads: half a second of work, during which it holds locks.
DEFAULT_MAX_RECORDS_PER_PARTITION: Final = 300_000

#: Small ranges of queues are bundled into one task up to this sum, because a task costs 30 ms, however little it reads.
DEFAULT_RECORDS_PER_TASK: Final = 50_000

_START: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_END: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SUBSCRIPTION: Final = ("subscribe", "topic", "subscribePattern", "assign")
_LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_STREAM_ONLY: Final = ("group",)
_BATCH_ONLY: Final = _END

#: The maximum wait for minOffsetsPerTrigger. Source: KafkaSourceProvider.DEFAULT_MAX_TRIGGER_DELAY.
_DEFAULT_TRIGGER_DELAY_SECONDS: Final = 900.0

NAMES: Final = (
    "url",
    "readUrl",
    *_SUBSCRIPTION,
    *_START,
    *_END,
    "startingOffsetsByTimestampStrategy",
    "subExpression",
    "selector",
    "keys",
    "columns",
    "rowFormat",
    "includeHeaders",
    "includeReservedHeaders",
    body_schema.SCHEMA,
    body_schema.ON_BAD_ROW,
    "splitBy",
    "minPartitions",
    "maxRecordsPerPartition",
    "recordsPerTask",
    *_LIMITS,
    *_STREAM_ONLY,
    "failOnDataLoss",
    "replicaWaitSeconds",
    broker_wait.OPTION,
    "engine",
    "batchSizeBytes",
)


@dataclass(frozen=True)
class Subscription:
    """The queues to read, given in one of three ways: topics, a pattern for their names, or queues by topic.

    `is_partial` means that the broker is one of several, so topics may be missing on it.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    is_partial: bool = False

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that are given by name and not by a pattern."""
        return tuple(self.assigned) if self.assigned is not None else self.topics


@dataclass(frozen=True)
class MessageChoice:
    """The messages to read from these queues, as checked strings. None and () select all messages."""

    sub_expression: str | None = None
    selector: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether all messages are read."""
        return self.sub_expression is None and self.selector is None and not self.keys


@dataclass(frozen=True)
class Splitting:
    """The rule for splitting a read into tasks. `by` is auto, segment or queue."""

    by: str = "auto"
    min_partitions: int = 1
    max_records_per_partition: int = DEFAULT_MAX_RECORDS_PER_PARTITION
    records_per_task: int = DEFAULT_RECORDS_PER_TASK


@dataclass(frozen=True)
class ReadOptions:
    """The options for tasks. `url` contains the password; `is_replica` is true if readUrl was given."""

    url: str = field(repr=False)
    is_replica: bool
    row_format: RowFormat
    engine: str
    batch_size_bytes: int
    replica_wait_seconds: float
    broker_wait_seconds: float
    fail_on_data_loss: bool
    reserved_headers: bool = False
    decoding: BodyDecoding | None = None

    def sources(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The message columns that have to be read from the database for these columns of the read."""
        if self.decoding is None:
            return sources_of(self.row_format, columns)
        return sources_of(self.row_format, self.own_columns(columns), with_bodies=True)

    def own_columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that are not made from bodies."""
        return columns if self.decoding is None else tuple(c for c in columns if c not in self.decoding.names)


@dataclass(frozen=True)
class SourceOptions:
    """All options of a read. `url` is the address for planning, `reading.url` the address for reading.

    `columns` are those of the row format, followed by those made from bodies.

    A batch has no limits and no group.
    """

    url: str = field(repr=False)
    subscription: Subscription
    starting: Position
    ending: Position
    start_beyond_end_is_latest: bool
    choice: MessageChoice
    columns: tuple[str, ...]
    splitting: Splitting
    reading: ReadOptions
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_seconds: float = _DEFAULT_TRIGGER_DELAY_SECONDS
    group: str | None = None


def source_columns(options: Mapping[str, str]) -> tuple[RowFormat, tuple[str, ...]]:
    """Only the row format and the columns, which are needed for a schema."""
    return _columns(_Given(options))


def source_decoding(options: Mapping[str, str]) -> BodyDecoding | None:
    """The decoding of bodies that a read requests. Raises OptionInvalid."""
    given = _Given(options)
    return _decoding(given, _columns(given)[1])


def check_source(options: Mapping[str, str]) -> None:
    """Check the options at `load`, before it is known whether a batch or a stream follows.

    Raises the errors of `parse_source` for both. Warns about ignored options of Kafka.
    """
    try:
        parse_source(options, is_stream=False)
    except MqdbError as error:
        try:
            parse_source(options, is_stream=True)
        except MqdbError:
            raise error.with_traceback(None) from None
    warn_of_ignored(options)


def parse_source(options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Read the options of `spark.read` or `spark.readStream`.

    Raises OptionUnknown, OptionInvalid, and the errors of topics, groups, tag expressions and selectors. The planner
    checks whether topics and offsets exist.
    """
    given = _Given(options)
    given.refuse_unknown()
    given.refuse(_BATCH_ONLY if is_stream else _STREAM_ONLY, "readStream" if is_stream else "read")
    url = _url(given, "url")
    if url is None:
        refuse_servers(options)
        raise OptionInvalid("url", None, "is missing; give .option('url', 'postgresql://user@host:5432/database')")
    read_url = _url(given, "readUrl")
    row_format, columns = _columns(given)
    decoding = _decoding(given, columns)
    # Batch options are checked and then ignored, as in the Kafka source.
    at_most, at_least = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    trigger_delay = given.parsed("maxTriggerDelay", _delay_seconds)
    return SourceOptions(
        url=url,
        subscription=_subscription(given),
        starting=_starting(given, LATEST if is_stream else EARLIEST, is_stream),
        ending=_ending(given),
        start_beyond_end_is_latest=given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        choice=_choice(given),
        columns=columns if decoding is None else (*columns, *decoding.columns.names),
        splitting=Splitting(
            by=given.one_of("splitBy", ("auto", "segment", "queue")),
            min_partitions=given.number("minPartitions") or 1,
            max_records_per_partition=given.number("maxRecordsPerPartition") or DEFAULT_MAX_RECORDS_PER_PARTITION,
            records_per_task=given.number("recordsPerTask") or DEFAULT_RECORDS_PER_TASK,
        ),
        reading=ReadOptions(
            url=read_url or url,
            is_replica=read_url is not None,
            row_format=row_format,
            engine=given.one_of("engine", ("adbc", "psycopg")),
            batch_size_bytes=given.parsed("batchSizeBytes", _bytes) or 4 * 1024 * 1024,
            replica_wait_seconds=given.seconds("replicaWaitSeconds", 30),
            broker_wait_seconds=given.seconds(broker_wait.OPTION, broker_wait.DEFAULT_SECONDS),
            fail_on_data_loss=given.one_of("failOnDataLoss", ("true", "false")) == "true",
            reserved_headers=given.truth("includeReservedHeaders"),
            decoding=decoding,
        ),
        max_offsets_per_trigger=at_most if is_stream else None,
        min_offsets_per_trigger=at_least if is_stream else None,
        max_trigger_delay_seconds=_DEFAULT_TRIGGER_DELAY_SECONDS if trigger_delay is None else trigger_delay,
        group=given.checked("group", _check_group),
    )


_Value = TypeVar("_Value")


class _Given:
    """The given options, looked up case-insensitively."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._names = {name.lower(): name for name in options}

    def refuse_unknown(self) -> None:
        known = {name.lower() for name in NAMES}
        for name in self._values:
            if name not in known and not is_of_kafka(name):
                raise OptionUnknown(self._names[name], NAMES)

    def refuse(self, names: tuple[str, ...], way: str) -> None:
        for name in names:
            if name.lower() in self._values:
                raise OptionInvalid(name, self.text(name), f"spark.{way} has no such option")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise OptionInvalid(name, value, "is empty")
        return value

    def first_of(self, names: tuple[str, ...]) -> str | None:
        """The name of the given option among these, which exclude each other."""
        found = [name for name in names if self.text(name) is not None]
        if len(found) > 1:
            raise OptionInvalid(found[1], self.text(found[1]), f"{found[0]} is given, too; remove one of them")
        return found[0] if found else None

    def parsed(self, name: str, parse: Callable[[str, str], _Value]) -> _Value | None:
        text = self.text(name)
        return None if text is None else parse(name, text)

    def checked(self, name: str, check: Callable[[str], object]) -> str | None:
        text = self.text(name)
        if text is not None:
            check(text)
        return text

    def number(self, name: str) -> int | None:
        return self.parsed(name, _positive)

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        return default if text is None else broker_wait.parse_seconds(name, text)

    def one_of(self, name: str, words: tuple[str, ...]) -> str:
        """The value of an option that takes one of these words; the first is the default."""
        text = (self.text(name) or words[0]).lower()
        if text not in words:
            raise OptionInvalid(name, text, f"write {' or '.join(words)}")
        return text

    def truth(self, name: str) -> bool:
        """The value of a switch, which is off by default."""
        return self.one_of(name, ("false", "true")) == "true"


def _positive(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise OptionInvalid(name, text, "write a whole number above 0")
    return int(text)


def _bytes(name: str, text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,11})([kKmM]?)", text)
    if not match:
        raise OptionInvalid(name, text, "write a number of bytes above 0, as 65536, 64k or 4m")
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()]


# The following functions import code that only the driver needs, when they need it.


def _url(given: _Given, name: str) -> str | None:
    from mqdb.common.dsn import parse_brokers, redact

    text = given.text(name)
    if text is None:
        return None
    try:
        brokers = parse_brokers(text, "")
    except ValueError as error:
        raise OptionInvalid(name, redact(text), str(error)) from None
    if len(brokers) > 1:
        raise OptionInvalid(name, redact(text), f"names {len(brokers)} brokers, but exactly one is needed")
    return brokers[0].dsn


def _subscription(given: _Given) -> Subscription:
    from mqdb.common.topic import check_topic_name

    name = given.first_of(_SUBSCRIPTION)
    text = given.text(name) if name else None
    if name is None or text is None:
        raise OptionInvalid("subscribe", None, "is missing; give subscribe, subscribePattern or assign")
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionInvalid(name, text, f"is not a regular expression: {error}") from None
        return Subscription(pattern=text)
    if name == "assign":
        assigned = parse_assign(name, text)
        for topic in assigned:
            check_topic_name(topic)
        return Subscription(assigned=assigned)
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for topic in topics:
        check_topic_name(topic)
    return Subscription(topics=topics)


def _starting(given: _Given, default: Position, is_stream: bool) -> Position:
    position = _position(given, _START) or default
    if position == LATEST and not is_stream:
        raise OptionInvalid("startingOffsets", "latest", "a batch read that starts at the end reads nothing")
    return position


def _ending(given: _Given) -> Position:
    position = _position(given, _END) or LATEST
    if position == EARLIEST:
        raise OptionInvalid("endingOffsets", "earliest", "a read that ends at the beginning reads nothing")
    return position


def _position(given: _Given, names: tuple[str, ...]) -> Position | None:
    """The position in the options.

    A time takes precedence over times by queue, and both over offsets, as with Kafka.
    """
    offsets, timestamp, by_timestamp = names
    moment = given.parsed(timestamp, parse_time)
    if moment is not None:
        return Position(timestamp, everywhere=moment)
    return given.parsed(by_timestamp, parse_times) or given.parsed(offsets, parse_offsets)


def _delay_seconds(name: str, text: str) -> float:
    from mqdb.common.duration import parse_duration

    # As Spark parses times: a plain number is in milliseconds, and a minute may be written min.
    plain = text.strip().lower()
    delay = parse_duration(f"{plain}ms" if plain.isdecimal() else re.sub("min$", "m", plain))
    if delay is None:
        raise OptionInvalid(name, text, "write a time as 15m, 30s or 500ms")
    return delay.total_seconds()


def _choice(given: _Given) -> MessageChoice:
    sub_expression = given.checked("subExpression", _check_tags)
    return MessageChoice(
        sub_expression=None if sub_expression == "*" else sub_expression,
        selector=given.checked("selector", _check_selector),
        keys=tuple((given.text("keys") or "").split()),
    )


def _check_tags(text: str) -> None:
    from mqdb.selector.tags import parse_tag_expression

    parse_tag_expression(text)


def _check_selector(text: str) -> None:
    from mqdb.selector import compile_selector

    compile_selector(text)


def _check_group(text: str) -> None:
    from mqdb.common.group import check_group_name

    check_group_name(text)


def _columns(given: _Given) -> tuple[RowFormat, tuple[str, ...]]:
    row_format = RowFormat(given.one_of("rowFormat", tuple(RowFormat)))
    known = columns_of(row_format)
    text = given.text("columns")
    if text is None:
        has_headers = given.truth("includeHeaders") or given.truth("includeReservedHeaders")
        return row_format, tuple(name for name in known if name != "headers" or has_headers)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise OptionInvalid("columns", text, f"there is no column {name!r}; the columns are {', '.join(known)}")
    return row_format, names


def _decoding(given: _Given, columns: tuple[str, ...]) -> BodyDecoding | None:
    on_bad_body = OnBadBody(given.one_of(body_schema.ON_BAD_ROW, tuple(OnBadBody)))
    text = given.text(body_schema.SCHEMA)
    if text is None:
        if (value := given.text(body_schema.ON_BAD_ROW)) is not None:
            raise OptionInvalid(body_schema.ON_BAD_ROW, value, "a read needs the option schema for it")
        return None
    decoded = body_schema.parse_schema(text)
    body_schema.check_names(text, decoded, columns)
    if body_schema.CORRUPT_RECORD in decoded.names and on_bad_body is not OnBadBody.NULL:
        raise OptionInvalid(body_schema.SCHEMA, text, f"{body_schema.CORRUPT_RECORD} needs onBadRow=null")
    return BodyDecoding(decoded, on_bad_body)
