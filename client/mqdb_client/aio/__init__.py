"""mqdb for asyncio, with the names, options, errors and guarantees of the thread-based classes of `mqdb_client`.

async with AsyncProducer("orders-service") as producer:
    await producer.send(Message("orders", b"...", tag="paid"))

consumer = AsyncPushConsumer("billing")
await consumer.subscribe("orders", "paid || refunded")
consumer.register_listener(listener)  # an async def
await consumer.run()

    producer, loop_sends, transaction_producer   sends, which end in the loop
    push_consumer, stop_signals                  listeners in the loop
    lite_pull_consumer, simple_consumer, admin, in_threads   methods that run in threads
"""

from mqdb_client.aio.admin import AsyncAdmin, AsyncBrokerAdmin, AsyncTopicReader
from mqdb_client.aio.lite_pull_consumer import AsyncLitePullConsumer, AsyncTopicMessageQueueChangeListener
from mqdb_client.aio.loop_sends import ids_that_may_be_stored
from mqdb_client.aio.producer import AsyncProducer
from mqdb_client.aio.push_consumer import (
    AsyncMessageListener,
    AsyncMessageListenerExactlyOnce,
    AsyncMessageListenerOrderly,
    AsyncPushConsumer,
)
from mqdb_client.aio.simple_consumer import AsyncSimpleConsumer
from mqdb_client.aio.transaction_producer import AsyncTransactionListener, AsyncTransactionProducer

__all__ = [
    "AsyncAdmin",
    "AsyncBrokerAdmin",
    "AsyncLitePullConsumer",
    "AsyncMessageListener",
    "AsyncMessageListenerOrderly",
    "AsyncMessageListenerExactlyOnce",
    "AsyncProducer",
    "AsyncPushConsumer",
    "AsyncSimpleConsumer",
    "AsyncTopicMessageQueueChangeListener",
    "AsyncTopicReader",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "ids_that_may_be_stored",
]
