"""RocketMQ 5's own Python SDK against a server of the protocol.

    python main.py host:port prefix case...

Each case has a topic, `prefix-case`, which must exist, and a consumer group of the same name. The group of `fifo` must
be orderly, the topic of `workers` should have one queue, and the server should check transactions after a few seconds.

Prints a line of JSON for each case: {"case", "ok", "seconds", "detail"}.
"""

import json
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import InternalErrorException

PATIENCE_SECONDS = 60.0
#: The server lets a receive wait no shorter.
POLL_SECONDS = 5
#: A new group reads only messages that are sent after its first receive. Probes are sent until one arrives.
PROBE = b"probe"


class Failed(Exception):
    """A case has failed."""


def check(condition: bool, *details: Any) -> None:
    if not condition:
        raise Failed(" ".join(map(str, details)))


def wait_until(condition: Callable[[], bool], what: Callable[[], Any]) -> None:
    """Wait for a condition. Raises Failed with the result of `what` if it takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        check(time.monotonic() < deadline, "not in time; so far:", what())
        time.sleep(0.02)


def let_pass(seconds: float) -> None:
    """Wait long enough for an unwanted message to arrive: its absence cannot be shown in any other way."""
    time.sleep(seconds)


class Inbox(MessageListener):  # type: ignore[misc]  # the SDK has no types
    """A listener that keeps its messages. `hear` returns the result for each, by default SUCCESS."""

    def __init__(self, hear: Callable[[Message], ConsumeResult] = lambda message: ConsumeResult.SUCCESS) -> None:
        self._hear = hear
        self.is_ready = threading.Event()
        #: In the order in which the listener has returned.
        self.messages: list[Message] = []

    def consume(self, message: Message) -> ConsumeResult:
        if message.body == PROBE:
            self.is_ready.set()
            return ConsumeResult.SUCCESS
        result = self._hear(message)
        self.messages.append(message)
        return result

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in list(self.messages)]


class Checker(TransactionChecker):  # type: ignore[misc]  # as above
    """Commits every half message."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    def check(self, message: Message) -> Any:
        self.asked.append(message)
        return TransactionResolution.COMMIT


class Case:
    """A topic, a group and their clients."""

    def __init__(self, endpoint: str, name: str) -> None:
        self._configuration = ClientConfiguration(endpoint, Credentials())
        self.topic = name
        self._clients: list[Any] = []

    def close(self) -> None:
        for client in self._clients:
            client.shutdown()

    def _started(self, client: Any) -> Any:
        client.startup()
        self._clients.append(client)
        return client

    def producer(self, checker: Checker | None = None) -> Any:
        return self._started(Producer(self._configuration, (self.topic,), checker))

    def push(self, inbox: Inbox, filter: FilterExpression | None = None) -> Any:
        subscription = {self.topic: filter or FilterExpression()}
        return self._started(PushConsumer(self._configuration, self.topic, inbox, subscription))

    def simple(self) -> Any:
        subscription = {self.topic: FilterExpression()}
        return self._started(SimpleConsumer(self._configuration, self.topic, subscription, await_duration=POLL_SECONDS))

    def message(self, body: str | bytes, *, tag: str | None = None, **properties: str) -> Message:
        message = Message()
        message.topic = self.topic
        message.body = body if isinstance(body, bytes) else body.encode()
        if tag is not None:
            message.tag = tag
        for name, value in properties.items():
            message.add_property(name, value)
        return message

    def send_until(self, is_ready: Callable[[], bool], producer: Any, probe: Callable[[], Message]) -> None:
        def sent() -> bool:
            if not is_ready():
                producer.send(probe())
                time.sleep(0.2)
            return is_ready()

        wait_until(sent, lambda: "no probe has come")

    def pushing(
        self,
        inbox: Inbox,
        filter: FilterExpression | None = None,
        probe: Callable[[], Message] | None = None,
        checker: Checker | None = None,
    ) -> Any:
        """Start a push consumer, and wait until it receives messages; returns a producer."""
        producer = self.producer(checker)
        self.push(inbox, filter)
        self.send_until(inbox.is_ready.is_set, producer, probe or (lambda: self.message(PROBE)))
        return producer

    def receiving(self) -> tuple[Any, Any]:
        """A producer, and a simple consumer whose group has started to receive."""
        producer, consumer = self.producer(), self.simple()
        first = consumer.receive_async(32, 30)
        self.send_until(first.done, producer, lambda: self.message(PROBE))
        for message in first.result():
            consumer.ack(message)
        return producer, consumer


def receive(consumer: Any, invisible: int = 30) -> list[Message]:
    """Receive once. Probes are acknowledged."""
    messages = consumer.receive(32, invisible)
    for probe in [message for message in messages if message.body == PROBE]:
        consumer.ack(probe)
    return [message for message in messages if message.body != PROBE]


def receive_some(consumer: Any, count: int, invisible: int = 30) -> list[Message]:
    """Receive until there are at least `count` messages; the last receive may return more."""
    messages: list[Message] = []

    def has_all() -> bool:
        messages.extend(receive(consumer, invisible))
        return len(messages) >= count

    wait_until(has_all, lambda: [message.body for message in messages])
    return messages


def send(case: Case) -> None:
    producer, consumer = case.receiving()
    ids = {}
    for number in range(10):
        message = case.message(f"body {number}", tag=f"tag{number}", number=str(number), text="grün")
        message.keys = f"key{number}"
        message.keys = "all"
        ids[f"body {number}"] = producer.send(message).message_id
    got = receive_some(consumer, 10)
    for message in got:
        consumer.ack(message)
    bodies = sorted(message.body.decode() for message in got)
    check(bodies == sorted(ids), bodies)
    for message in got:
        number = message.body.decode().removeprefix("body ")
        found = (message.topic, message.tag, message.keys, message.properties, message.delivery_attempt)
        wanted = (case.topic, f"tag{number}", {f"key{number}", "all"}, {"number": number, "text": "grün"}, 1)
        check(found == wanted, found)
        check(message.message_id == ids[f"body {number}"], message.message_id)
        check(not message.corrupted, "the digest is wrong")
        check(abs(message.born_timestamp / 1_000 - time.time()) < 60, message.born_timestamp)


def push(case: Case) -> None:
    inbox = Inbox()
    producer = case.pushing(inbox)
    bodies = [f"body {number}" for number in range(50)]
    for body in bodies:
        producer.send(case.message(body))
    wait_until(lambda: set(inbox.bodies) == set(bodies), lambda: inbox.bodies)
    let_pass(1)
    check(sorted(inbox.bodies) == sorted(bodies), Counter(inbox.bodies).most_common(3))


def tags(case: Case) -> None:
    inbox = Inbox()
    producer = case.pushing(inbox, FilterExpression("a || b"), lambda: case.message(PROBE, tag="a"))
    for tag in ("c", "a", "b", "c", "a"):
        producer.send(case.message(f"of {tag}", tag=tag))
    producer.send(case.message("of none"))
    wait_until(lambda: len(inbox.bodies) >= 3, lambda: inbox.bodies)
    let_pass(1)
    check(sorted(inbox.bodies) == ["of a", "of a", "of b"], inbox.bodies)


def sql(case: Case) -> None:
    inbox = Inbox()
    filter = FilterExpression("color = 'red' AND number > 3", FilterType.SQL)
    producer = case.pushing(inbox, filter, lambda: case.message(PROBE, color="red", number="4"))
    for number in range(8):
        for color in ("blue", "red"):
            producer.send(case.message(f"{color} {number}", color=color, number=str(number)))
    wait_until(lambda: len(inbox.bodies) >= 4, lambda: inbox.bodies)
    let_pass(1)
    check(sorted(inbox.bodies) == [f"red {number}" for number in range(4, 8)], inbox.bodies)


def fifo(case: Case) -> None:
    failed: list[str] = []

    def hear(message: Message) -> ConsumeResult:
        time.sleep(0.02)
        if message.body == b"b 3" and not failed:
            failed.append("b 3")
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS

    def of_group(group: str, body: str | bytes) -> Message:
        message = case.message(body)
        message.message_group = group
        return message

    inbox = Inbox(hear)
    producer = case.pushing(inbox, probe=lambda: of_group("a", PROBE))
    groups = "abcd"
    for number in range(10):
        for group in groups:
            producer.send(of_group(group, f"{group} {number}"))
    wait_until(lambda: len(set(inbox.bodies)) == 40 and len(inbox.bodies) > 40, lambda: inbox.bodies)
    for group in groups:
        wanted = [f"{group} {number}" for number in range(10)]
        if group == "b":
            wanted.insert(3, "b 3")
        found = [body for body in inbox.bodies if body.startswith(group)]
        check(found == wanted, found)


def delay(case: Case) -> None:
    times: list[float] = []

    def hear(message: Message) -> ConsumeResult:
        times.append(time.time())
        return ConsumeResult.SUCCESS

    inbox = Inbox(hear)
    producer = case.pushing(inbox)
    message = case.message("later")
    due = int(time.time()) + 4
    message.delivery_timestamp = due
    producer.send(message)
    wait_until(lambda: bool(inbox.bodies), lambda: inbox.bodies)
    check(times[0] >= due, f"came {due - times[0]:.3f} s too early")
    check(times[0] < due + 10, f"came {times[0] - due:.3f} s too late")
    check(inbox.messages[0].delivery_timestamp == due * 1_000, inbox.messages[0].delivery_timestamp, due)


def recall(case: Case) -> None:
    inbox = Inbox()
    producer = case.pushing(inbox)
    receipts = []
    for body in ("recalled", "kept"):
        message = case.message(body)
        message.delivery_timestamp = int(time.time()) + 5
        receipts.append(producer.send(message))
    recalled = producer.recall_message(case.topic, receipts[0].recall_handle)
    check(recalled == receipts[0].message_id, recalled)
    wait_until(lambda: bool(inbox.bodies), lambda: inbox.bodies)
    let_pass(2)
    check(inbox.bodies == ["kept"], inbox.bodies)
    try:
        producer.recall_message(case.topic, receipts[1].recall_handle)
    except InternalErrorException:
        return
    raise Failed("a message that was delivered has been recalled")


def transaction_commit(case: Case) -> None:
    inbox, checker = Inbox(), Checker()
    producer = case.pushing(inbox, checker=checker)
    transaction = producer.begin_transaction()
    receipt = producer.send(case.message("half"), transaction)
    let_pass(1)
    check(inbox.bodies == [], "a half message was delivered")
    transaction.commit()
    wait_until(lambda: bool(inbox.bodies), lambda: inbox.bodies)
    check(inbox.messages[0].message_id == receipt.message_id, inbox.messages[0].message_id)


def transaction_rollback(case: Case) -> None:
    inbox, checker = Inbox(), Checker()
    producer = case.pushing(inbox, checker=checker)
    transaction = producer.begin_transaction()
    producer.send(case.message("half"), transaction)
    transaction.rollback()
    producer.send(case.message("plain"))
    wait_until(lambda: bool(inbox.bodies), lambda: inbox.bodies)
    let_pass(6)  # longer than the server takes to ask
    check(inbox.bodies == ["plain"], inbox.bodies)
    check(checker.asked == [], "the server has asked about a transaction that has ended")


def transaction_check(case: Case) -> None:
    inbox, checker = Inbox(), Checker()
    producer = case.pushing(inbox, checker=checker)
    receipt = producer.send(case.message("half", tag="t", color="red"), producer.begin_transaction())
    wait_until(lambda: bool(inbox.bodies), lambda: f"asked {len(checker.asked)} times")
    for message in (checker.asked[0], inbox.messages[0]):
        found = (message.message_id, message.topic, message.tag, message.properties.get("color"), message.body)
        check(found == (receipt.message_id, case.topic, "t", "red", b"half"), found)
    let_pass(4)
    check((len(checker.asked), inbox.bodies) == (1, ["half"]), len(checker.asked), inbox.bodies)


def retry(case: Case) -> None:
    def hear(message: Message) -> ConsumeResult:
        is_first = message.delivery_attempt == 1
        return ConsumeResult.FAILURE if message.body == b"body 3" and is_first else ConsumeResult.SUCCESS

    inbox = Inbox(hear)
    producer = case.pushing(inbox)
    for number in range(6):
        producer.send(case.message(f"body {number}", tag="t"))
    wait_until(lambda: len(inbox.bodies) >= 7, lambda: inbox.bodies)
    let_pass(3)
    counts = Counter(inbox.bodies)
    check(counts == {**{f"body {number}": 1 for number in range(6)}, "body 3": 2}, counts)
    first, second = [message for message in inbox.messages if message.body == b"body 3"]
    check((first.delivery_attempt, second.delivery_attempt) == (1, 2), second.delivery_attempt)
    check((second.message_id, second.topic, second.tag) == (first.message_id, case.topic, "t"), second.topic)


def change_invisible(case: Case) -> None:
    producer, consumer = case.receiving()
    for body in ("sooner", "later"):
        producer.send(case.message(body))
    got = {message.body: message for message in receive_some(consumer, 2, invisible=10)}
    began = time.monotonic()
    consumer.change_invisible_duration(got[b"later"], 60)
    consumer.change_invisible_duration(got[b"sooner"], 1)
    [again] = receive_some(consumer, 1)
    seconds = time.monotonic() - began
    check((again.body, again.delivery_attempt) == (b"sooner", 2), again.body, again.delivery_attempt)
    check(0.9 < seconds < 8, f"came again after {seconds:.1f} s")
    consumer.ack(again)
    while time.monotonic() < began + 14:  # the time that the receive asked for is over
        check(receive(consumer) == [], "a message whose time was prolonged came again")
    consumer.ack(got[b"later"])


def workers(case: Case) -> None:
    def hear(message: Message) -> ConsumeResult:
        time.sleep(0.05)
        return ConsumeResult.SUCCESS

    inboxes = [Inbox(hear) for _ in range(6)]
    producer = case.pushing(inboxes[0])
    for inbox in inboxes[1:]:
        case.push(inbox)
    case.send_until(lambda: all(inbox.is_ready.is_set() for inbox in inboxes), producer, lambda: case.message(PROBE))
    bodies = [f"body {number}" for number in range(200)]
    for body in bodies:
        producer.send(case.message(body))

    def heard() -> list[str]:
        return [body for inbox in inboxes for body in inbox.bodies]

    wait_until(lambda: len(heard()) >= len(bodies), lambda: len(heard()))
    let_pass(2)
    check(sorted(heard()) == sorted(bodies), Counter(heard()).most_common(3))
    shares = [len(inbox.bodies) for inbox in inboxes]
    check(sum(share > 0 for share in shares) >= 3, "most consumers got nothing:", shares)


def slow(case: Case) -> None:
    def hear(message: Message) -> ConsumeResult:
        calls.append(message.message_id)
        time.sleep(40)
        return ConsumeResult.SUCCESS

    calls: list[str] = []
    inbox = Inbox(hear)
    producer = case.pushing(inbox)
    producer.send(case.message("slow"))
    wait_until(lambda: bool(inbox.bodies), lambda: calls)
    let_pass(5)
    check(len(calls) == 1, f"came {len(calls)} times")


def restart(case: Case) -> None:
    """The caller restarts the server during this case."""
    inbox = Inbox()
    producer = case.pushing(inbox)
    bodies = [f"body {number}" for number in range(100)]

    def is_sent(body: str) -> bool:
        try:
            producer.send(case.message(body))
        except Exception:  # noqa: BLE001, as the SDK's errors have no common class
            return False
        return True

    for body in bodies:
        wait_until(partial(is_sent, body), lambda: "no send succeeds")
        time.sleep(0.1)
    # A message whose answer or acknowledgement was lost comes twice.
    wait_until(lambda: set(bodies) <= set(inbox.bodies), lambda: sorted(set(bodies) - set(inbox.bodies)))


CASES = [
    send, push, tags, sql, fifo, delay, recall, transaction_commit, transaction_rollback, transaction_check, retry,
    change_invisible, workers, slow, restart,
]  # fmt: skip


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(endpoint: str, prefix: str, *names: str) -> None:
    cases = {case.__name__: case for case in CASES}
    for name in names:
        began, detail = time.monotonic(), None
        case = Case(endpoint, f"{prefix}-{name}")
        try:
            cases[name](case)
        except Failed as error:
            detail = str(error)
        except Exception:  # noqa: BLE001, as it is told to the test
            detail = traceback.format_exc()
        say({"case": name, "ok": detail is None, "seconds": round(time.monotonic() - began, 3), "detail": detail})
        case.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
