"""A member of group `readers` on topic `orders`; run as a script by test_push_consumer_processes.

    python consumer_process.py DSN [BODY [SHUTDOWN_SECONDS]]

Prints `assigned` and the queue numbers whenever they change, `got` and the body of each consumed message, `waiting`
when BODY arrives, which is never finished, and `left` at the end.
"""

import os
import sys
import threading
from datetime import timedelta

from mqdb.common.received_message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus, ConsumeFromWhere, PushConsumer


def say(*words: object) -> None:
    # One write: what is said is said, also when the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def report_assignments(consumer: PushConsumer, ending: threading.Event) -> None:
    known = None
    while not ending.wait(0.01):
        if consumer.assignment != known:
            known = consumer.assignment
            say("assigned", *(queue.queue_id for queue in known))


def main(dsn: str, stuck_body: str = "", shutdown_seconds: str = "25") -> None:
    def listener(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        for message in messages:
            body = message.body.decode()
            if body == stuck_body:
                say("waiting")
                threading.Event().wait()
            say("got", body)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    timeout = timedelta(seconds=float(shutdown_seconds))
    consumer = PushConsumer("readers", dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, shutdown_timeout=timeout)
    consumer.subscribe("orders")
    consumer.register_listener(listener)
    ending = threading.Event()
    reporter = threading.Thread(target=report_assignments, args=(consumer, ending), daemon=True)
    reporter.start()
    consumer.run()
    ending.set()
    reporter.join()
    say("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
