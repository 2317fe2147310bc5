"""The client of mqdb: producers and consumers, for Python programs.

A producer works inside its `with` block, and a consumer until `shutdown` or a signal stops it:

    with Producer("orders-service") as producer:
        producer.send(Message("orders", b"...", tag="paid"))

    consumer = PushConsumer("billing")
    consumer.subscribe("orders", "paid || refunded")
    consumer.register_listener(listener)
    consumer.run()

Read `producer` and `consumer` first; their docstrings give the order.

    producer, consumer, lite_pull, simple, transaction   sends; push consumers; polls; pops; half messages
    admin, app, aio       administration; functions as listeners; everything for asyncio
    cluster, instance     the brokers of a client; the part that a broker's clients in a process share
    registrations, callbacks, notifications, dispatch_watch   groups; callbacks for news from the broker
    broker_connections, new_connection, connection_watch, outage   connections, and their loss
    route, queue_argument, client_config, option_rules   queues of a topic; the options of a client
    duty, looks, leaving, abandoned_clients   periodic work; shutdown; members that are no longer used
    process_hooks, metrics, broker_counts, broker_metrics, tracing   hooks, metrics and spans
    server, spark, testing   a broker in this process; functions for Spark; a pytest plugin
"""

from mqdb import errors
from mqdb.broker.acl import RightChange, Rights
from mqdb.broker.consumers.groups import GroupDetails
from mqdb.broker.consumers.offset_reset import Boundary
from mqdb.broker.dead_letters import Chosen, DeadLetterFilter, Redrive
from mqdb.broker.doctor.finding import DoctorCheck, DoctorThresholds, Finding, FindingStatus
from mqdb.broker.filters.trial import Trial
from mqdb.broker.log.trace import CopyFailure, CopyWait, GroupTrack, MessageCopy, MessageTrace, TrackType, WaitState
from mqdb.broker.schedule.cron import CatchUp
from mqdb.broker.schedule.timers import RecallStatus
from mqdb.broker.topics.topics import TopicDetails, Unread
from mqdb.broker.transactions.transactions import Resolution
from mqdb.common.clock import Clock
from mqdb.common.compression import Compression
from mqdb.common.delay_level import DelayLevels
from mqdb.common.dsn import BrokerDsn
from mqdb.common.durability import Durability
from mqdb.common.group import ConsumeFromWhere, ConsumeMode, MessageModel
from mqdb.common.http_address import HttpAddress
from mqdb.common.log_lines import FieldFormatter, JsonFormatter
from mqdb.common.message import Message, MessageQueue, SendStatus
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.topic import MessageType, Perm, TopicConfig
from mqdb.common.transaction import HalfState, LocalTransactionState
from mqdb.selector.subscription import ExpressionType, MessageFilter
from mqdb.settings import SettingLine, Settings, load_settings
from mqdb.settings.layers import default_home
from mqdb.store.acl import Access, Resource, ResourceType, Right
from mqdb.store.consumers.groups import (
    GroupSettings,
    GroupSummary,
    MemberInfo,
    QueueProgress,
    StoredSubscription,
    TopicLag,
)
from mqdb.store.consumers.offset_changes import OffsetChange
from mqdb.store.consumers.waiting_retries import RetryStep
from mqdb.store.dead_letters import (
    CauseOfDeath,
    DeadLetter,
    DeathsByHour,
    GroupLetters,
    PastRedrive,
    RedriveResult,
    RedriveStatus,
    WholeDeadLetter,
)
from mqdb.store.dispatch.queues import QueueStats
from mqdb.store.operations import Operation
from mqdb.store.schedule.cron import CronSummary
from mqdb.store.schedule.delay_queues import LevelStanding
from mqdb.store.schedule.waiting_timers import WaitingTimer
from mqdb.store.segments.partitions import SegmentSize
from mqdb.store.segments.segments import Log, Segment, SegmentState
from mqdb.store.topics.topic_uses import TopicUses
from mqdb.store.transactions.half_messages import HalfMessage
from mqdb_client.admin.admin import Admin, BrokerAdmin
from mqdb_client.admin.answers import Answers
from mqdb_client.admin.consumers import ConsumerStatus, DirectConsumption
from mqdb_client.admin.doctor import Doctor
from mqdb_client.admin.latest_messages import LatestMessages
from mqdb_client.admin.selectors import SelectorExplanation, explain_selector
from mqdb_client.admin.topic_reader import TopicReader
from mqdb_client.admin.versions import Versions
from mqdb_client.app.app import App
from mqdb_client.app.app_crons import AppCron
from mqdb_client.app.listener import Listener, exponential
from mqdb_client.app.listener_group import ListenerGroup
from mqdb_client.consumer.listeners.consume_hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult, DirectResult
from mqdb_client.consumer.listeners.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListener,
    MessageListenerExactlyOnce,
    MessageListenerOrderly,
)
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.consumer.push_consumer import PushConsumer
from mqdb_client.lite_pull.lite_pull_consumer import LitePullConsumer
from mqdb_client.lite_pull.topic_watch import TopicMessageQueueChangeListener
from mqdb_client.producer.producer import Producer
from mqdb_client.producer.queues.queue_selector import MessageQueueSelector, select_by_hash, select_random
from mqdb_client.producer.requests.request_reply import ReplyMessage, create_reply_message
from mqdb_client.producer.sends.batch import split_batches
from mqdb_client.producer.sends.send_hooks import CheckForbiddenHook, SendMessageContext, SendMessageHook, SendMode
from mqdb_client.producer.sends.send_result import SendResult
from mqdb_client.simple.simple_consumer import SimpleConsumer
from mqdb_client.transaction.transaction_listener import PreparedMessage, TransactionListener
from mqdb_client.transaction.transaction_producer import TransactionProducer, TransactionSendResult

__all__ = [
    "App",
    "AppCron",
    "Listener",
    "ListenerGroup",
    "exponential",
    "Producer",
    "ReplyMessage",
    "TransactionProducer",
    "PushConsumer",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "SendResult",
    "SendStatus",
    "ReceivedMessage",
    "TransactionSendResult",
    "TransactionListener",
    "PreparedMessage",
    "LocalTransactionState",
    "split_batches",
    "create_reply_message",
    "Clock",
    "Durability",
    "Compression",
    "MessageQueueSelector",
    "select_by_hash",
    "select_random",
    "SendMessageHook",
    "CheckForbiddenHook",
    "SendMessageContext",
    "SendMode",
    "MessageListener",
    "MessageListenerOrderly",
    "MessageListenerExactlyOnce",
    "ConsumeConcurrentlyStatus",
    "ConsumeConcurrentlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeOrderlyContext",
    "ConsumeMessageHook",
    "ConsumeMessageContext",
    "ConsumeReturnType",
    "MessageModel",
    "ConsumeFromWhere",
    "ConsumeMode",
    "MessageSelector",
    "MessageFilter",
    "ExpressionType",
    "TopicMessageQueueChangeListener",
    "Admin",
    "BrokerAdmin",
    "Answers",
    "TopicConfig",
    "MessageType",
    "Perm",
    "TopicDetails",
    "QueueStats",
    "QueueProgress",
    "Unread",
    "TopicUses",
    "GroupSummary",
    "TopicLag",
    "RetryStep",
    "GroupDetails",
    "GroupSettings",
    "StoredSubscription",
    "MemberInfo",
    "ConsumerStatus",
    "DirectConsumption",
    "ConsumeMessageDirectlyResult",
    "DirectResult",
    "Boundary",
    "OffsetChange",
    "Operation",
    "Versions",
    "Doctor",
    "Finding",
    "FindingStatus",
    "DoctorThresholds",
    "DoctorCheck",
    "Right",
    "RightChange",
    "Rights",
    "Access",
    "Resource",
    "ResourceType",
    "TopicReader",
    "MessageTrace",
    "MessageCopy",
    "GroupTrack",
    "TrackType",
    "CopyWait",
    "WaitState",
    "CopyFailure",
    "LatestMessages",
    "DeadLetterFilter",
    "CauseOfDeath",
    "DeathsByHour",
    "GroupLetters",
    "DeadLetter",
    "WholeDeadLetter",
    "Chosen",
    "Redrive",
    "RedriveResult",
    "RedriveStatus",
    "PastRedrive",
    "WaitingTimer",
    "RecallStatus",
    "LevelStanding",
    "CronSummary",
    "CatchUp",
    "HalfMessage",
    "HalfState",
    "Resolution",
    "Trial",
    "SelectorExplanation",
    "Segment",
    "SegmentSize",
    "SegmentState",
    "Log",
    "explain_selector",
    "Settings",
    "load_settings",
    "BrokerDsn",
    "HttpAddress",
    "SettingLine",
    "SimpleConsumer",
    "DelayLevels",
    "default_home",
    "errors",
    "FieldFormatter",
    "JsonFormatter",
]
