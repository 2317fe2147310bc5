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
from mqdb.group import ConsumeFromWhere
from mqdb.message import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from mqdb_client.consumer.message_listener import ConsumeConcurrentlyStatus, MessageListener
from mqdb_client.consumer.message_selector import MessageSelector
from mqdb_client.consumer.push_consumer import PushConsumer
from mqdb_client.producer import Producer

__all__ = [
    "Producer",
    "PushConsumer",
    "Message",
    "MessageQueue",
    "SendResult",
    "SendStatus",
    "ReceivedMessage",
    "ConsumeConcurrentlyStatus",
    "MessageListener",
    "ConsumeFromWhere",
    "MessageSelector",
    "errors",
]
