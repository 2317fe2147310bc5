"""A member of group `readers` that consumes topic `orders` in order; run as a script by test_orderly_faults.

    python orderly_process.py DSN threads|asyncio LOCK_EXPIRY_SECONDS LISTENER_SECONDS FAILURES_PERCENT

Prints `assigned` and the queue numbers whenever they change, `begin QUEUE OFFSET TIME` for each call of the listener,
and `done` or `failed` with the same fields when the call returns; TIME comes from a clock that all processes share.
Prints `left` at the end.
"""

import os
import random
import sys
import threading
import time
from datetime import timedelta

from mqdb.common.received_message import ReceivedMessage
from mqdb_client import ConsumeFromWhere, ConsumeOrderlyStatus, PushConsumer
from tests.fixtures.loop_consumers import CLASSES


def say(*words: object) -> None:
    # One write: what is said is said, also when the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def report_assignments(consumer: PushConsumer, ending: threading.Event) -> None:
    known = None
    while not ending.wait(0.01):
        if consumer.assignment != known:
            known = consumer.assignment
            say("assigned", *(queue.queue_id for queue in known))


def main(dsn: str, kind: str, lock_expiry: float, listener_seconds: float, failures_percent: float) -> None:
    def listener(messages: list[ReceivedMessage]) -> ConsumeOrderlyStatus:
        [message] = messages
        where = message.queue.queue_id, message.queue_offset
        say("begin", *where, time.monotonic())
        time.sleep(listener_seconds)
        if random.random() * 100 < failures_percent:
            say("failed", *where, time.monotonic())
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        say("done", *where, time.monotonic())
        return ConsumeOrderlyStatus.SUCCESS

    consumer = CLASSES[kind](
        "readers",
        dsn,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        queue_lock_expiry=timedelta(seconds=lock_expiry),
        suspend_current_queue_time=timedelta(milliseconds=10),
        persist_consumer_offset_interval=timedelta(milliseconds=200),
    )
    consumer.subscribe("orders")
    consumer.register_listener(listener, orderly=True)
    ending = threading.Event()
    reporter = threading.Thread(target=report_assignments, args=(consumer, ending), daemon=True)
    reporter.start()
    consumer.run()
    ending.set()
    reporter.join()
    say("left")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
