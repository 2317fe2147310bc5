"""The client of mqdb: producers and consumers, for Python programs.

A producer works inside its block, a consumer until it is told to stop:

    with Producer("orders-service") as producer:
        producer.send(Message("orders", b"...", tag="paid"))

    consumer = PushConsumer("billing")
    consumer.subscribe("orders", "paid || refunded")
    consumer.register_listener(listener)
    consumer.run()
"""

from mqdb import errors
from mqdb.compression import Compression
from mqdb.group import ConsumeFromWhere, MessageModel
from mqdb.log_lines import FieldFormatter
from mqdb.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from mqdb.transaction import LocalTransactionState
from mqdb_client.batch import split_batches
from mqdb_client.consumer.consume_hooks import ConsumeMessageContext, ConsumeMessageHook, ConsumeReturnType
from mqdb_client.consumer.message_listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListener,
    MessageListenerOrderly,
    MessageListenerTransactional,
)
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.consumer.push_consumer import PushConsumer
from mqdb_client.durability import Durability
from mqdb_client.fault_tolerance import LatencyFaultTable
from mqdb_client.lite_pull.lite_pull_consumer import LitePullConsumer
from mqdb_client.lite_pull.topic_watch import TopicMessageQueueChangeListener
from mqdb_client.producer.producer import Producer
from mqdb_client.producer_hooks import CheckForbiddenHook, SendMessageContext, SendMessageHook, SendMode
from mqdb_client.queue_selector import MessageQueueSelector, select_by_hash, select_random
from mqdb_client.request_reply import create_reply_message
from mqdb_client.transaction.transaction_listener import PreparedMessage, TransactionListener
from mqdb_client.transaction.transaction_producer import TransactionProducer, TransactionSendResult

__all__ = [
    "Producer",
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
    "Durability",
    "Compression",
    "LatencyFaultTable",
    "MessageQueueSelector",
    "select_by_hash",
    "select_random",
    "SendMessageHook",
    "CheckForbiddenHook",
    "SendMessageContext",
    "SendMode",
    "MessageListener",
    "MessageListenerOrderly",
    "MessageListenerTransactional",
    "ConsumeConcurrentlyStatus",
    "ConsumeConcurrentlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeOrderlyContext",
    "ConsumeMessageHook",
    "ConsumeMessageContext",
    "ConsumeReturnType",
    "MessageModel",
    "ConsumeFromWhere",
    "MessageSelector",
    "TopicMessageQueueChangeListener",
    "errors",
    "FieldFormatter",
]
