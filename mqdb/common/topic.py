"""Topics: their names, which of them belong to the broker, and their configuration.

The names of system topics are built only here. The names are RocketMQ's, so that its users find everything under
familiar names. RocketMQ: TopicValidator, MixAll, PermName, TopicConfig, TopicMessageType.
"""

import re
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Final

from mqdb.errors import NameInvalid, ParameterInvalid, TopicNotAllowed, shown

#: Just long enough for `%RETRY%` in front of the longest group name.
MAX_TOPIC_LENGTH: Final = 127

#: The queues of a topic that is created by its first message; mqadmin and `mqdb topic create` make 8.
DEFAULT_TOPIC_QUEUE_NUMS: Final = 4

#: RocketMQ has no limit. Each queue is a row here, and the most that RocketMQ itself gives a topic is 1,024
#: (BenchmarkTest); 64 times as many still catches typing errors.
MAX_QUEUE_NUMS: Final = 65_536

#: The queues that a role may give to a topic by the right to administer it, and to the topics of a group. The database
#: enforces the same numbers: `mqdb/sql/topics/max_queues.sql`.
MAX_QUEUES_BY_RIGHT: Final = 1_024
MAX_GROUP_QUEUES_BY_RIGHT: Final = 64

TEMPLATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_PREFIX: Final = "rmq_sys_"

#: Only the broker writes to these. TBW102 is not included: RocketMQ 4.x refused it, 5.x does not.
NOT_ALLOWED_SEND: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

#: No role may create, change or delete these.
SYSTEM_TOPICS: Final = NOT_ALLOWED_SEND | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, CHECKPOINT_TOPIC}


def retry_topic(group: str) -> str:
    """The topic that brings failed messages back to `group`: one per group, not one per topic."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of the messages that `group` has given up on."""
    return DLQ_PREFIX + group


def reply_topic(cluster_name: str) -> str:
    """The topic that brings replies to all requesters of a cluster.

    The name of a cluster may contain dots, the name of a topic may not. In RocketMQ this is a system topic. Here, like
    retry topics, it is not, because it is created again when needed.
    """
    return cluster_name.replace(".", "_") + REPLY_SUFFIX


def is_system_topic(name: str) -> bool:
    """Whether a topic belongs to the broker: it cannot be created, changed or deleted.

    The prefix is matched in lower case only, as in RocketMQ. Retry and DLQ topics are not system topics.
    """
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def is_group_topic(name: str) -> bool:
    """True for the retry topic and the dead letter queue of a group."""
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def max_queues_by_right(name: str) -> int:
    """The maximum number of queues that a topic may get from an administrator who does not own the broker."""
    return MAX_GROUP_QUEUES_BY_RIGHT if is_group_topic(name) else MAX_QUEUES_BY_RIGHT


def without_namespace(name: str, namespace: str | None) -> str:
    """The name of a topic or group within a namespace, for complete names like `shop%orders` or `%RETRY%shop%billing`.

    `mqdb/sql/acl/namespace.sql` implements the same rule, and completes names. Source: NamespaceUtil.withoutNamespace.
    """
    if namespace is None:
        return name
    prefix = next((each for each in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(each)), "")
    return prefix + name.removeprefix(prefix).removeprefix(f"{namespace}%")


def check_topic_name(name: str) -> None:
    """Raise NameInvalid unless `name` is valid for a topic. Source: Validators.checkTopic."""
    check_name("topic", name, MAX_TOPIC_LENGTH)


def check_send_topic(name: str) -> None:
    """Raise NameInvalid or TopicNotAllowed unless `name` is valid for a topic to which users may send."""
    check_topic_name(name)
    if name in NOT_ALLOWED_SEND:
        raise TopicNotAllowed(name)


def check_name(kind: str, name: object, max_length: int) -> None:
    """Raise NameInvalid unless `name` is 1 to `max_length` of the characters that RocketMQ allows.

    Topics and groups share the characters and differ in length. Source: TopicValidator.
    """
    if not isinstance(name, str):
        raise NameInvalid(kind, shown(name), f"is {type(name).__name__}, not text; {_allowed(max_length)}")
    if len(name) <= max_length and _NAME.fullmatch(name):
        return
    raise NameInvalid(kind, name, f"{_name_fault(name)}; {_allowed(max_length)}")


_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_NOT_IN_NAME = re.compile(r"[^%|a-zA-Z0-9_-]")


def _name_fault(name: str) -> str:
    stranger = _NOT_IN_NAME.search(name)
    if stranger:
        return f"holds {stranger[0]!r}"
    return f"has {len(name):,} characters" if name else "is empty"


def _allowed(max_length: int) -> str:
    return f"allowed are 1 to {max_length} characters of A-Z a-z 0-9 _ - % |"


class Perm(IntFlag):
    """The permissions of a topic. 6 = READ | WRITE is the usual value. Source: PermName."""

    INHERIT = 1
    WRITE = 2
    READ = 4


class MessageType(StrEnum):
    """The intended type of a topic's messages, which is stored and shown.

    In RocketMQ only the gRPC proxy enforces it.
    """

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    UNSPECIFIED = "UNSPECIFIED"
    MIXED = "MIXED"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic. The defaults are those of `mqadmin updateTopic`.

    Producers choose among queues 0 to write_queue_nums - 1, consumers read 0 to
    read_queue_nums - 1. To shrink a topic without loss, lower the first, let consumers finish,
    then lower the second. With `order`, producers should keep to the queue of a sharding key.
    """

    name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: Perm = Perm.READ | Perm.WRITE
    order: bool = False
    message_type: MessageType = MessageType.NORMAL

    def __post_init__(self) -> None:
        check_topic_name(self.name)
        _check_queue_nums("read_queue_nums", self.read_queue_nums)
        _check_queue_nums("write_queue_nums", self.write_queue_nums)
        # Values from rows and command lines are plain numbers and strings.
        object.__setattr__(self, "perm", _perm(self.perm))
        object.__setattr__(self, "message_type", _message_type(self.message_type))


def _check_queue_nums(name: str, value: object) -> None:
    if not isinstance(value, int) or not 1 <= value <= MAX_QUEUE_NUMS:
        raise ParameterInvalid(name, value, f"must be from 1 to {MAX_QUEUE_NUMS:,}")


def _perm(value: object) -> Perm:
    if not isinstance(value, int) or not 0 <= value <= 7:
        raise ParameterInvalid("perm", value, "must be from 0 to 7: the sum of 4 (read), 2 (write), 1 (inherit)")
    return Perm(value)


def _message_type(value: str) -> MessageType:
    try:
        return MessageType(value)
    except ValueError as exc:
        raise ParameterInvalid("message_type", value, f"must be one of {', '.join(MessageType)}") from exc
