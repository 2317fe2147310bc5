"""A push consumer of RocketMQ 5's Python SDK in group `workers` on topic `orders`; run as a script by test_pop_mixed.

    python sdk_worker_process.py ENDPOINT

Prints `ready`, then `got`, the body and the delivery number of each message.
"""

import os
import sys
import threading

from rocketmq import ClientConfiguration, ConsumeResult, Credentials, FilterExpression, MessageListener, PushConsumer


class Listener(MessageListener):  # type: ignore[misc]  # the SDK has no types
    """A listener that consumes every message."""

    def consume(self, message: object) -> object:
        # One write: what is said is said, also when the process is killed.
        os.write(1, f"got {message.body.decode()} {message.delivery_attempt}\n".encode())  # type: ignore[attr-defined]
        return ConsumeResult.SUCCESS


def main(endpoint: str) -> None:
    configuration = ClientConfiguration(endpoint, Credentials())
    consumer = PushConsumer(configuration, "workers", Listener(), {"orders": FilterExpression()})
    consumer.startup()
    os.write(1, b"ready\n")
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
