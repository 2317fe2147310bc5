"""Bodies of answers to RocketMQ's tools.

They use fastjson's format: a map may have objects as keys, which JSON does not allow.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mqdb.common.group import ConsumeFromWhere
from mqdb.common.retry_delays import doubled_delays
from mqdb.common.topic import MessageType, TopicConfig
from mqdb.errors import ParameterInvalid
from mqdb.remoting.wire.bodies import as_json, milliseconds_of
from mqdb.store.consumers.groups import GroupSettings

#: A queue is identified by its topic and number; the broker is the one that answers.
QueueId = tuple[str, int]

#: Defaults in milliseconds. Source: ExponentialRetryPolicy.
_EXPONENTIAL: Final = {"initial": 5_000, "max": 7_200_000}


def encode_with_table(
    name: str, table: Mapping[QueueId, object], broker_name: str, said: Mapping[str, object] | None = None
) -> bytes:
    """A body that contains a map by queue, and the other given fields."""
    entries = (f"{_key(broker_name, *queue)}:{json.dumps(value)}" for queue, value in table.items())
    fields = [f"{json.dumps(name)}:{{{','.join(entries)}}}"]
    fields += (f"{json.dumps(field)}:{json.dumps(value)}" for field, value in (said or {}).items())
    return f"{{{','.join(fields)}}}".encode()


def _key(broker_name: str, topic: str, queue_id: int) -> str:
    return json.dumps({"brokerName": broker_name, "queueId": queue_id, "topic": topic})


def topic_config(config: TopicConfig) -> dict[str, Any]:
    """A topic's settings as RocketMQ's TopicConfig."""
    kind = config.message_type
    return {
        "topicName": config.name,
        "readQueueNums": config.read_queue_nums,
        "writeQueueNums": config.write_queue_nums,
        "perm": int(config.perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": config.order,
        "attributes": {} if kind is MessageType.NORMAL else {"message.type": kind.value},
    }


def group_config(name: str, settings: GroupSettings) -> dict[str, Any]:
    """A group's settings as RocketMQ's SubscriptionGroupConfig.

    Settings that mqdb does not have get RocketMQ's defaults.
    """
    return {
        "groupName": name,
        "consumeEnable": settings.consume_enable,
        "consumeFromMinEnable": settings.consume_from_where is ConsumeFromWhere.FIRST_OFFSET,
        "consumeBroadcastEnable": settings.consume_broadcast_enable,
        "consumeMessageOrderly": settings.consume_message_orderly,
        "retryQueueNums": settings.retry_queue_nums,
        "retryMaxTimes": settings.retry_max_times,
        "groupRetryPolicy": _retry_policy(settings.retry_delays),
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "attributes": {},
    }


def _retry_policy(delays: Sequence[timedelta]) -> dict[str, Any]:
    """The delays of a group as RocketMQ's GroupRetryPolicy. A group without its own delays has RocketMQ's ladder."""
    policy: dict[str, Any] = {"type": "CUSTOMIZED"}
    if delays:
        policy["customizedRetryPolicy"] = {"next": [delay // timedelta(milliseconds=1) for delay in delays]}
    return policy


def retry_delays(policy: object) -> list[timedelta] | None:
    """The delays in a GroupRetryPolicy; an empty list for RocketMQ's ladder, and None if there is no policy.

    Raises ParameterInvalid.
    """
    if policy is None:
        return None
    try:
        said: Any = policy
        if said.get("type") == "EXPONENTIAL":
            given = said.get("exponentialRetryPolicy") or {}
            first, most = (_milliseconds(given.get(name, usual)) for name, usual in _EXPONENTIAL.items())
            return doubled_delays(first, most, float(given.get("multiplier", 2)))
        return [_milliseconds(each) for each in (said.get("customizedRetryPolicy") or {}).get("next") or ()]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ParameterInvalid("groupRetryPolicy", policy, "must be a GroupRetryPolicy of RocketMQ") from error


def _milliseconds(value: object) -> timedelta:
    return timedelta(milliseconds=float(value))  # type: ignore[arg-type]  # its errors say what it is


def subscription_data(topic: str, expression_type: str, expression: str, version: int = 0) -> dict[str, Any]:
    """A subscription as RocketMQ's SubscriptionData. Tools do not read its tag codes, so they are empty."""
    return {
        "topic": topic,
        "subString": expression,
        "expressionType": expression_type,
        "subVersion": version,
        "classFilterMode": False,
        "tagsSet": [],
        "codeSet": [],
    }


#: RocketMQ uses this version to count changes. Here, each answer is as new as its request.
def versioned(table: str, entries: Iterable[tuple[str, Mapping[str, object]]]) -> bytes:
    """A named table with its version."""
    now = milliseconds_of(datetime.now(UTC))
    return as_json({table: dict(entries), "dataVersion": {"counter": now, "stateVersion": 0, "timestamp": now}})
