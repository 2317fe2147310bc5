"""A consumer of the demo, in its own process: two members of one group are two processes, as in production.

The process reports how many queues it reads, and the messages that its listener received. The module is run as a
program; see `mqdb.cli.demo.child`.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mqdb.cli.demo.account import Delivery
from mqdb.cli.demo.child import Child, report, run_child, until_input_ends
from mqdb.common.group import ConsumeFromWhere
from mqdb.common.received_message import ReceivedMessage
from mqdb.settings import Settings

_REPORT_SECONDS = 0.05
_THREADS = 4


class DemoOrder(NamedTuple):
    """The instructions for a member: the broker, the group and the subscription."""

    dsn: str
    pool_dsn: str | None
    broker_name: str
    group: str
    topic: str
    expression: str


class DemoMember(Child):
    """The demo's handle of a consumer process. A separate thread calls `on_deliveries`."""

    def __init__(self, order: DemoOrder, on_deliveries: Callable[[list[Delivery]], None]) -> None:
        self.queue_count = 0
        self._on_deliveries = on_deliveries
        super().__init__(f"a consumer of group {order.group!r}", __name__, order, self._take)

    def _take(self, what: dict[str, Any]) -> None:
        self.queue_count = what.get("queues", self.queue_count)
        if deliveries := what.get("deliveries"):
            self._on_deliveries(
                [Delivery(id_, queue, offset, body.encode(), at) for id_, queue, offset, body, at in deliveries]
            )


def _consume(values: list[Any]) -> None:
    from mqdb_client import ConsumeConcurrentlyStatus, PushConsumer

    order = DemoOrder(*values)
    received: list[tuple[str, int, int, str, float]] = []

    def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        now = time.monotonic()
        received.extend(
            (message.message_id, message.queue.queue_id, message.queue_offset, message.body.decode(), now)
            for message in messages
        )
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        order.group,
        settings=Settings(dsn=order.dsn, pool_dsn=order.pool_dsn, broker_name=order.broker_name),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_thread_nums=_THREADS,
    )
    consumer.subscribe(order.topic, order.expression)
    consumer.register_listener(listen)
    with consumer:
        for _ in until_input_ends(_REPORT_SECONDS):
            count = len(received)
            report(queues=len(consumer.assignment), deliveries=received[:count])
            del received[:count]
    report(deliveries=received)


if __name__ == "__main__":
    run_child(_consume)
