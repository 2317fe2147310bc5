"""Conversion of times and durations from and to protobuf."""

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from mqdb.grpc.wire.rocketmq_pb2 import Code
from mqdb.grpc.wire.status import CallRefused


def timestamp(time: datetime) -> Timestamp:
    """Convert an aware datetime."""
    made = Timestamp()
    made.FromDatetime(time)
    return made


def duration(length: timedelta) -> Duration:
    """Convert a duration."""
    made = Duration()
    made.FromTimedelta(length)
    return made


def time_of(given: Timestamp, name: str) -> datetime:
    """A field as an aware datetime in UTC.

    Raises CallRefused for a time that no datetime can hold; `name` is the name of the field.
    """
    try:
        return given.ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise CallRefused(Code.BAD_REQUEST, f"{name} is not a time: {error}") from error


def length_of(given: Duration, name: str) -> timedelta:
    """A field as a timedelta.

    Raises CallRefused for a duration that no timedelta can hold; `name` is the name of the field.
    """
    try:
        return given.ToTimedelta()
    except (ValueError, OverflowError) as error:
        raise CallRefused(Code.BAD_REQUEST, f"{name} is not a duration: {error}") from error
