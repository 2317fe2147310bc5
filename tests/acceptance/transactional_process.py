"""A member of group `readers` that consumes `orders` in transactions; run as a script by test_exactly_once_faults.

    python transactional_process.py DSN threads|asyncio SHARED|GREEDY CONCURRENT|ORDERLY FAILURES_PERCENT

Its listener counts each message in the table `ledger`, sends a message with the same body to topic `invoices`, and then
may fail. A GREEDY member claims all queues, and takes them from others by force. Prints `ready` after joining.
"""

import os
import random
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection, text

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.rebalance import allocate_averagely
from mqdb_client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    Producer,
    PushConsumer,
)
from tests.fixtures.loop_consumers import CLASSES

COUNT = text(
    """INSERT INTO ledger (message_id, body) VALUES (:message_id, :body)
       ON CONFLICT (message_id) DO UPDATE SET times = ledger.times + 1"""
)


class ListenerFault(Exception):
    """The error that the listener raises on purpose."""


def all_queues(_group: str, _client_id: str, queues: Sequence[MessageQueue], _ids: Sequence[str]) -> list[MessageQueue]:
    return list(queues)


def main(dsn: str, kind: str, sharing: str, mode: str, failures_percent: str) -> None:
    is_greedy, is_orderly = sharing == "GREEDY", mode == "ORDERLY"
    success = ConsumeOrderlyStatus.SUCCESS if is_orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    producer = Producer("invoicers", dsn)

    def listener(messages: list[ReceivedMessage], connection: Connection) -> object:
        rows = [{"message_id": message.message_id, "body": message.body.decode()} for message in messages]
        connection.execute(COUNT, rows)
        for message in messages:
            producer.send(Message("invoices", message.body), connection=connection)
        if random.random() * 100 < float(failures_percent):
            raise ListenerFault
        return success

    consumer = CLASSES[kind](
        "readers",
        dsn,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=8,
        allocate_message_queue_strategy=all_queues if is_greedy else allocate_averagely,
        hand_over_grace=timedelta(seconds=0.2 if is_greedy else 30),
        suspend_current_queue_time=timedelta(milliseconds=10),
        queue_lock_expiry=timedelta(seconds=2),
        persist_consumer_offset_interval=timedelta(seconds=1),
    )
    consumer.subscribe("orders")
    consumer.register_listener(listener, orderly=is_orderly, exactly_once=True)
    joining = threading.Thread(target=report_join, args=(consumer,), daemon=True)
    with producer:
        joining.start()
        consumer.run()


def report_join(consumer: PushConsumer) -> None:
    while not consumer.assignment:
        threading.Event().wait(0.02)
    # One write: what is said is said, also when the process is killed.
    os.write(1, b"ready\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
