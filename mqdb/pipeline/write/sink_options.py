"""Options of a write with format("mqdb"): parses them, with one clear error for each invalid option.

Names are case-insensitive, as in Spark. This module is small on purpose: workers import it with the writer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mqdb.common.dsn import parse_brokers, redact
from mqdb.common.topic import check_send_topic
from mqdb.pipeline import broker_wait
from mqdb.pipeline.errors import OptionInvalid, OptionUnknown
from mqdb.pipeline.kafka_options import is_of_kafka, refuse_servers, warn_of_ignored

#: The options that a user may give.
NAMES: Final = (
    "url",
    "topic",
    "writeId",
    "sinkId",
    "reservedProperties",
    "failOnDataLoss",
    "onBadRow",
    "maxRowsPerCommit",
    "commitSessions",
    broker_wait.OPTION,
)

#: The options for Spark itself, which it passes on.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})

#: The sessions of one commit. More than the server's cores are of no use.
_MOST_SESSIONS: Final = 64

_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")


class ReservedProperties(StrEnum):
    """The action for properties with the broker's own names, which rows that were read from a topic have.

    Without the option they are dropped from rows that were read from a topic, and refused otherwise.
    """

    REFUSE = "refuse"
    DROP = "drop"


class OnBadRow(StrEnum):
    """The action for a row that cannot become a message."""

    FAIL = "fail"
    SKIP = "skip"
    TOPIC = "topic"


@dataclass(frozen=True)
class SinkOptions:
    """All options of a write. `url` contains the password.

    `given_id` is the writeId of a batch job or the sinkId of a stream; None if the job or query is not identified by
    such an id.
    """

    url: str = field(repr=False)
    topic: str | None = None
    given_id: str | None = None
    reserved_properties: ReservedProperties | None = None
    fail_on_data_loss: bool = True
    broker_wait_seconds: float = broker_wait.DEFAULT_SECONDS
    on_bad_row: OnBadRow = OnBadRow.FAIL
    bad_row_topic: str | None = None
    max_rows_per_commit: int | None = None
    commit_sessions: int = 1

    @property
    def given_topics(self) -> tuple[str, ...]:
        """The topics that are given by options and not by rows."""
        return tuple(topic for topic in (self.topic, self.bad_row_topic) if topic is not None)

    @property
    def target(self) -> str:
        """The address to which the rows go, for error messages, without a password."""
        return redact(self.url)


def parse_sink(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Read the options of `df.write` or `df.writeStream`.

    Warns about ignored options of Kafka. Raises OptionUnknown, OptionInvalid; NameInvalid and TopicNotAllowed for the
    topic, whose existence is not checked.
    """
    given = {
        name.lower(): value
        for name, value in options.items()
        if name.lower() not in _OF_SPARK and not is_of_kafka(name)
    }
    _refuse_unknown(options, given)
    if "url" not in given:
        refuse_servers(options)
    warn_of_ignored(options)
    for name, value in given.items():
        if not value.strip():
            raise OptionInvalid(_written(name), value, "is empty")
    own, other, way = ("sinkId", "writeId", "write") if is_stream else ("writeId", "sinkId", "writeStream")
    if other.lower() in given:
        raise OptionInvalid(other, given[other.lower()], f"is for {way}; use {own}")
    on_bad_row, bad_row_topic = _on_bad_row(given.get("onbadrow", OnBadRow.FAIL.value))
    return SinkOptions(
        url=_url(given.get("url")),
        topic=_topic(given.get("topic")),
        given_id=_id(own, given.get(own.lower())),
        reserved_properties=_reserved_properties(given),
        fail_on_data_loss=_one_of(given, "failOnDataLoss", ("true", "false")) == "true",
        broker_wait_seconds=_wait_seconds(given.get(broker_wait.OPTION.lower())),
        on_bad_row=on_bad_row,
        bad_row_topic=bad_row_topic,
        max_rows_per_commit=_count(given, "maxRowsPerCommit"),
        commit_sessions=_sessions(given),
    )


def _refuse_unknown(options: Mapping[str, str], given: Mapping[str, str]) -> None:
    known = {name.lower() for name in NAMES}
    for name in options:
        if name.lower() in given and name.lower() not in known:
            raise OptionUnknown(name, NAMES)


def _written(name: str) -> str:
    return next(each for each in NAMES if each.lower() == name)


def _one_of(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """The value of an option that takes one of these words; the first is the default."""
    text = given.get(name.lower(), words[0]).lower()
    if text not in words:
        raise OptionInvalid(name, text, f"write {' or '.join(words)}")
    return text


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise OptionInvalid(name, text, "write a number from 1 to 999999999")
    return int(text)


def _sessions(given: Mapping[str, str]) -> int:
    sessions = _count(given, "commitSessions") or 1
    if sessions > _MOST_SESSIONS:
        raise OptionInvalid("commitSessions", str(sessions), f"is above {_MOST_SESSIONS}")
    if sessions > 1 and "maxrowspercommit" not in given:
        raise OptionInvalid("commitSessions", str(sessions), "needs maxRowsPerCommit: a commit has one session")
    return sessions


def _wait_seconds(text: str | None) -> float:
    return broker_wait.DEFAULT_SECONDS if text is None else broker_wait.parse_seconds(broker_wait.OPTION, text)


def _reserved_properties(given: Mapping[str, str]) -> ReservedProperties | None:
    name = "reservedProperties"
    return ReservedProperties(_one_of(given, name, tuple(ReservedProperties))) if name.lower() in given else None


def _on_bad_row(text: str) -> tuple[OnBadRow, str | None]:
    word, colon, topic = text.partition(":")
    if word.lower() == OnBadRow.TOPIC and topic:
        check_send_topic(topic)
        return OnBadRow.TOPIC, topic
    if colon or word.lower() not in (OnBadRow.FAIL, OnBadRow.SKIP):
        raise OptionInvalid("onBadRow", text, "write fail, skip or topic:NAME")
    return OnBadRow(word.lower()), None


def _url(text: str | None) -> str:
    if text is None:
        raise OptionInvalid("url", None, "is missing; give .option('url', 'postgresql://user@host:5432/database')")
    try:
        brokers = parse_brokers(text, "")
    except ValueError as error:
        raise OptionInvalid("url", redact(text), str(error)) from None
    if len(brokers) > 1:
        raise OptionInvalid("url", redact(text), f"names {len(brokers)} brokers, but exactly one is needed")
    return brokers[0].dsn


def _topic(text: str | None) -> str | None:
    if text is not None:
        check_send_topic(text)
    return text


def _id(name: str, text: str | None) -> str | None:
    if text is not None and not _ID.fullmatch(text):
        raise OptionInvalid(name, text, "write 1 to 200 printable ASCII characters without blanks")
    return text
