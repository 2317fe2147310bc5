"""RocketMQ's Python client, a wrapper around its C++ library, against a server of the protocol.

    python main.py host:port topic

Sends, consumes, and makes one message fail once; the server then chooses the delay: 10 s. The topic must exist; all
groups are named after it. Prints a line of JSON, {"case", "ok", "seconds", "detail", "figures"}, and exits with 0 on
success. Runs in a separate environment with `rocketmq` 0.4.4.
"""

import json
import sys
import time
from threading import Event, Lock
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer

COUNT = 20
PATIENCE_SECONDS = 90


def main(server: str, topic: str) -> dict[str, object]:
    figures: dict[str, object] = {}
    producer = Producer(f"{topic}-producers")
    producer.set_namesrv_addr(server)
    producer.start()
    times: dict[str, int] = {}
    faults = []
    failed_at = 0.0
    lock = Lock()
    is_listening = Event()

    def listen(message: Any) -> None:
        nonlocal failed_at
        with lock:
            body = message.body.decode()
            if body == "probe":
                is_listening.set()
                return
            times[body] = times.get(body, 0) + 1
            if message.get_property("own") not in (body, body.encode()):
                faults.append(f"{body} has the property {message.get_property('own')}")
            if body == "body 3" and times[body] == 1:
                failed_at = time.monotonic()
                raise RuntimeError("as the program wants it")
            if body == "body 3":
                figures["first_retry_seconds"] = time.monotonic() - failed_at

    consumer = PushConsumer(f"{topic}-consumers")
    consumer.set_namesrv_addr(server)
    consumer.subscribe(topic, listen)
    consumer.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    # It begins at the end of the topic, and has no option for that.
    while not is_listening.wait(0.2) and time.monotonic() < deadline:
        send(producer, topic, "probe", 0)
    for number in range(COUNT):
        send(producer, topic, f"body {number}", number)
    while (len(times) < COUNT or times["body 3"] < 2) and time.monotonic() < deadline:
        time.sleep(0.1)
    consumer.shutdown()
    producer.shutdown()
    assert not faults, faults
    wanted = {f"body {number}": 2 if number == 3 else 1 for number in range(COUNT)}
    assert times == wanted, f"came as often as {times}, expected {wanted}"
    return figures


def send(producer: Producer, topic: str, body: str, number: int) -> None:
    message = Message(topic)
    message.set_keys(f"key{number}")
    message.set_tags(f"tag{number % 2}")
    message.set_property("own", body)
    message.set_body(body)
    result = producer.send_sync(message)
    assert result.status == 0, f"status of the send: {result.status}"


if __name__ == "__main__":
    begin = time.monotonic()
    line: dict[str, object] = {"case": "python", "ok": True, "detail": None, "figures": {}}
    try:
        line["figures"] = main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001, as it is told to the test
        line |= {"ok": False, "detail": f"{type(error).__name__}: {error}"}
    line["seconds"] = time.monotonic() - begin
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    sys.exit(not line["ok"])
