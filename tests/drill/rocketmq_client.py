"""RocketMQ's own Python client, which reaches the cluster through `mqdb remoting`.

    python -m tests.drill.rocketmq_client '{"front": "127.0.0.1:9876", "client": "haproxy", "attempts": ..., ...}'

The client runs in a separate environment, with `rocketmq` and without mqdb. The client sends five messages a second,
and consumes in a group that begins at the end of the topic. If a send fails, the outcome of its message is unknown.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from rocketmq.client import Message, Producer, PushConsumer

from tests.drill.attempts import Attempt, AttemptFile, Result
from tests.fixtures.fault_group import Event, Record, Records

KIND: Final = "rocketmq"
_TOPIC: Final = "drill"
_PAUSE_SECONDS: Final = 0.2


def main(arguments: dict[str, str]) -> None:
    way, front = arguments["client"], arguments["front"]
    attempts, records = AttemptFile(Path(arguments["attempts"])), Records(Path(arguments["records"]))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def listen(message: Any) -> None:
        name = message.body.decode()
        records.write(Record(time.monotonic(), Event.SUCCEEDED, member=f"{way}-{KIND}", name=name))

    consumer = PushConsumer(f"{way}-{KIND}")
    consumer.set_namesrv_addr(front)
    consumer.subscribe(_TOPIC, listen)
    consumer.start()
    producer = Producer(f"{way}-{KIND}-senders")
    producer.set_namesrv_addr(front)
    producer.start()
    for number in itertools.count():
        if stop.wait(_PAUSE_SECONDS):
            break
        name, began = f"{way}-{KIND}-{os.getpid()}:{number}", time.monotonic()
        message = Message(_TOPIC)
        message.set_body(name)
        try:
            result, detail = Result.STORED, str(producer.send_sync(message).status)
        except Exception as error:  # noqa: BLE001, as the client raises nothing more special
            result, detail = Result.UNKNOWN, str(error)[:200]
        attempts.write(Attempt(began, time.monotonic(), way, KIND, name, result, detail))
    # Its library does not always end.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
