"""JSON bodies as columns, on a worker: each value has the type given by the option `schema`, or its row is bad.

The rules for values are those of `from_json`; JSON itself is parsed strictly. pyarrow's JSON reader is not suitable:
one bad row fails its whole block, and a body with two values becomes two rows. Source: Spark's JacksonParser.
"""

import json
import logging
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from mqdb.pipeline.errors import BodyNotDecoded, OptionInvalid
from mqdb.pipeline.read.body_schema import CORRUPT_RECORD, BodyDecoding, OnBadBody

logger = logging.getLogger(__name__)

#: The number of bad rows of a task that are logged individually.
_LOGGED: Final = 10

_KINDS: Final = {str: "string", bool: "boolean", dict: "object", list: "array", type(None): "null"}

#: Columns that identify a message.
_PLACE: Final = ("topic", "queue_id", "queue_offset")

_Convert: TypeAlias = Callable[[Any], Any]


class BodyDecoder:
    """Makes columns from the bodies of one task."""

    def __init__(self, decoding: BodyDecoding) -> None:
        self._decoding = decoding
        self._faults: list[str] = []
        converters = _Converters(_session_zone(), self._faults)
        fields = decoding.columns.fields
        self._row = converters.struct(StructType([field for field in fields if field.name != CORRUPT_RECORD]))
        self._types = {field.name: to_arrow_type(field.dataType, timezone="UTC") for field in fields}
        self._has_corrupt_record = CORRUPT_RECORD in self._types
        self._decode = json.JSONDecoder(parse_float=_Number).decode
        self._bad = 0

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
        """The batch, without bad rows if they are to be left out, and the columns made from its bodies.

        Raises BodyNotDecoded for a bad row if the option says so.
        """
        rows: list[dict[str, Any]] = []
        kept: list[int] = []
        for number, body in enumerate(batch.column("body").to_pylist()):
            row: dict[str, Any] | None = self._decoded(body)
            if self._faults and row is not None:
                row = self._bad_row(batch.slice(number, 1), row)
            if row is not None:
                kept.append(number)
                rows.append(row)
        if len(kept) < batch.num_rows:
            batch = batch.take(pa.array(kept, pa.int64()))
        return batch, {name: pa.array([row.get(name) for row in rows], type_) for name, type_ in self._types.items()}

    def report(self) -> None:
        """Log at the end of a task how many rows were left out."""
        if self._bad:
            logger.warning("a task skipped bad rows: %s", f"{self._bad:,}")

    def _decoded(self, body: bytes | None) -> dict[str, Any]:
        """The row for a body. Faults are added to `_faults`. A null or empty body is not a fault, and gives nulls."""
        if body is None or not body.strip():
            return {}
        try:
            value = self._decode(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            self._faults.append(f"the body is not UTF-8: {error.reason} at byte {error.start}")
        except (ValueError, RecursionError) as error:
            self._faults.append(f"the body is not JSON: {error}")
        else:
            try:
                row: dict[str, Any] = self._row(value)
                return row
            except _Misfit as misfit:
                self._faults.append(f"the body {misfit}")
        return {}

    def _bad_row(self, message: pa.RecordBatch, row: dict[str, Any]) -> dict[str, Any] | None:
        """The row for a bad body; None if it is left out. Raises BodyNotDecoded if onBadRow is fail."""
        fault = self._faults[0]
        self._faults.clear()
        topic, queue_id, queue_offset = (message.column(name)[0].as_py() for name in _PLACE)
        invalid = BodyNotDecoded(topic, queue_id, queue_offset, fault)
        match self._decoding.on_bad_body:
            case OnBadBody.FAIL:
                raise invalid
            case OnBadBody.SKIP:
                self._bad += 1
                if self._bad <= _LOGGED:
                    logger.warning("skipped a bad row: %s", invalid)
                return None
            case OnBadBody.NULL:
                if not self._has_corrupt_record:
                    return row
                return {**row, CORRUPT_RECORD: message.column("body")[0].as_py().decode("utf-8", "replace")}


class _Misfit(Exception):
    """A value that does not fit its type. This error never leaves the module."""

    def __init__(self, value: object, type_: str) -> None:
        # Without the value: bodies must not be logged.
        super().__init__(f"is of JSON type {_KINDS.get(type(value), 'number')}, and holds no {type_}")


class _Number(float):
    """A number with a point or an exponent, with its text, because a decimal may have more digits than a float."""

    text: str

    def __new__(cls, text: str) -> "_Number":
        """Make a number from a JSON token."""
        number = super().__new__(cls, text)
        number.text = text
        return number


class _Converters:
    """Makes a function for each type, which converts a non-null JSON value to an Arrow value or raises _Misfit.

    A field of a struct catches this error, becomes null, and adds it to the faults.
    """

    def __init__(self, zone: tzinfo | None, faults: list[str]) -> None:
        self._zone = zone
        self._faults = faults

    def struct(self, type_: StructType) -> _Convert:
        """The conversion of an object with these fields. Other fields are ignored, missing fields are null."""
        fields = [(field.name, self._of(field.dataType)) for field in type_.fields]
        name_of_type = type_.simpleString()
        faults = self._faults

        def convert(value: Any) -> dict[str, Any]:
            if type(value) is not dict:
                raise _Misfit(value, name_of_type)
            row = {}
            for name, convert_field in fields:
                item = value.get(name)
                if item is not None:
                    try:
                        item = convert_field(item)
                    except _Misfit as misfit:
                        faults.append(f"field {name!r} of the body {misfit}")
                        item = None
                row[name] = item
            return row

        return convert

    def _of(self, type_: DataType) -> _Convert:
        match type_:
            case StructType():
                return self.struct(type_)
            case ArrayType():
                return self._array(type_)
            case MapType():
                return self._map(type_)
            case DecimalType():
                return _decimal(type_)
            case TimestampType():
                return self._timestamp
        return _OTHERS[type(type_)]

    def _array(self, type_: ArrayType) -> _Convert:
        element, name = self._of(type_.elementType), type_.simpleString()

        def convert(value: Any) -> list[Any]:
            if type(value) is not list:
                raise _Misfit(value, name)
            return [None if item is None else element(item) for item in value]

        return convert

    def _map(self, type_: MapType) -> _Convert:
        convert_value, name = self._of(type_.valueType), type_.simpleString()

        def convert(value: Any) -> list[tuple[str, Any]]:
            if type(value) is not dict:
                raise _Misfit(value, name)
            return [(_text(key), None if item is None else convert_value(item)) for key, item in value.items()]

        return convert

    def _timestamp(self, value: Any) -> int:
        """Microseconds since 1970. A number means seconds."""
        micros = None
        if type(value) is int:
            micros = value * 1_000_000
        elif type(value) is str:
            micros = _micros(value, self._zone)
        if micros is None or not -(2**63) <= micros < 2**63:
            raise _Misfit(value, "timestamp")
        return micros


def _whole(name: str, bits: int) -> _Convert:
    past = 1 << (bits - 1)

    def convert(value: Any) -> int:
        if type(value) is not int or not -past <= value < past:
            raise _Misfit(value, name)
        return value

    return convert


_NUMBERS: Final = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), float("-inf")),
}


def _double(value: Any) -> float:
    if type(value) is _Number or type(value) is float:  # NaN and Infinity, which are not JSON, are plain floats
        return value
    try:
        if type(value) is int:
            return float(value)
        if type(value) is str:
            return _NUMBERS[value]
    except (KeyError, OverflowError):
        pass
    raise _Misfit(value, "number")


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _Misfit(value, "boolean")
    return value


def _text(value: Any) -> str:
    """The value as a string; anything but a string becomes its JSON."""
    text = value if type(value) is str else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Half a surrogate pair, which can only come from an escape, is written as in Java.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _binary(value: Any) -> bytes:
    try:
        if type(value) is str:
            return b64decode(value, validate=True)
    except ValueError:
        pass
    raise _Misfit(value, "base64")


_DECIMAL: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _decimal(type_: DecimalType) -> _Convert:
    unit, name = Decimal(1).scaleb(-type_.scale), type_.simpleString()
    context = Context(prec=type_.precision, rounding=ROUND_HALF_UP)

    def convert(value: Any) -> Decimal:
        text = value.text if type(value) is _Number else str(value) if type(value) is int else value
        try:
            if type(text) is str and _DECIMAL.fullmatch(text):
                return Decimal(text).quantize(unit, context=context)
        except InvalidOperation:  # more digits than the type has
            pass
        raise _Misfit(value, name)

    return convert


_DATE: Final = re.compile(r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?\s*", re.ASCII | re.DOTALL)


def _date(value: Any) -> date:
    try:
        if type(value) is str and (match := _DATE.fullmatch(value)):
            return date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    except ValueError:  # the 30th of February
        pass
    raise _Misfit(value, "date")


#: Source: SparkDateTimeUtils.parseTimestampString. A zone needs the seconds before it.
_TIMESTAMP: Final = re.compile(
    r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?(.*))?)?)?)?)?\s*",
    re.ASCII,
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)
_LARGEST_OFFSET: Final = timedelta(hours=18)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def _micros(text: str, zone: tzinfo | None) -> int | None:
    """Microseconds since 1970; `zone` is for text without a zone, None means this machine's zone."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone_text = match.groups()
    try:
        if zone_text and zone_text.strip():
            zone = _zone(zone_text.strip())
        day_parts = int(year), int(month or 1), int(day or 1)
        micros = int((fraction or "").ljust(6, "0")[:6])
        time_parts = int(hour or 0), int(minute or 0), int(second or 0), micros
        moment = datetime(*day_parts, *time_parts, tzinfo=zone or UTC)
        # In an hour that the clock skips or repeats, the offset before the change applies.
        if zone is None:
            moment = moment.replace(tzinfo=None).astimezone(UTC)
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError, OSError, LookupError):
        return None


def _zone(text: str) -> tzinfo:
    if text in ("Z", "UTC", "GMT"):
        return UTC
    if match := _OFFSET.fullmatch(text):
        sign, hours, minutes, seconds = match.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        if offset > _LARGEST_OFFSET:
            raise ValueError(text)
        return timezone(-offset if sign == "-" else offset)
    return ZoneInfo(text)


_SESSION_ZONE: Final = "spark.sql.session.timeZone"


def _session_zone() -> tzinfo | None:
    """The time zone of the session, if one is set. Source: SQLExecution.withSQLConfPropagated."""
    context = TaskContext.get()
    name = None if context is None else context.getLocalProperty(_SESSION_ZONE)
    try:
        return None if name is None else _zone(name)
    except (ValueError, LookupError):
        reason = "Python does not know this zone, which it needs to parse times in bodies; name one, as Europe/Berlin"
        raise OptionInvalid(_SESSION_ZONE, name, reason) from None


_OTHERS: Final[dict[type[DataType], _Convert]] = {
    BooleanType: _boolean,
    ByteType: _whole("tinyint", 8),
    ShortType: _whole("smallint", 16),
    IntegerType: _whole("int", 32),
    LongType: _whole("bigint", 64),
    FloatType: _double,
    DoubleType: _double,
    StringType: _text,
    BinaryType: _binary,
    DateType: _date,
}
