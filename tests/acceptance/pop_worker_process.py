"""A worker of group `workers` on topic `orders`; run as a script by test_pop_killed.

    python pop_worker_process.py DSN INVISIBLE_SECONDS

Prints `got`, the body and the delivery number of each message, and `done` with the body when the ack has returned.
"""

import os
import sys
from datetime import timedelta

from mqdb.errors import BrokerUnavailable, ReceiptHandleInvalid
from mqdb_client import ConsumeFromWhere, SimpleConsumer


def say(*words: object) -> None:
    # One write: what is said is said, also when the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(dsn: str, invisible_seconds: str) -> None:
    invisible = timedelta(seconds=float(invisible_seconds))
    consumer = SimpleConsumer("workers", dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    with consumer:
        say("ready")
        while True:
            try:
                messages = consumer.receive(8, invisible)
            except BrokerUnavailable:
                continue
            for message in messages:
                say("got", message.body.decode(), message.delivery_attempt)
            for message in messages:
                try:
                    consumer.ack(message)
                except (BrokerUnavailable, ReceiptHandleInvalid) as error:
                    say("failed", message.body.decode(), type(error).__name__)
                else:
                    say("done", message.body.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
