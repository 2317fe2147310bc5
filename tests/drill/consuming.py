"""The consumers of the drill, with a process for each way to the cluster.

    python -m tests.drill.consuming '{"dsn": ..., "client": "haproxy", "path": ...}'

Each kind has a separate group, which receives all messages. All deliveries are written to the file, with the group's
name as that of the member; the log goes to standard error. SIGTERM ends the process.
"""

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from mqdb_client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from mqdb_client.aio import AsyncPushConsumer
from tests.drill.producing import LATE_TOPIC, TOPIC, log_to_stderr
from tests.fixtures.fault_group import Event, Record, Records

#: The groups of a client, and the topic that each consumes.
GROUPS: Final = {
    "concurrent": TOPIC,
    "orderly": TOPIC,
    "exactly-once": TOPIC,
    "lite-pull": TOPIC,
    "asyncio": TOPIC,
    "late": LATE_TOPIC,
}

_BEGIN: Final = ConsumeFromWhere.FIRST_OFFSET


class Consumption:
    """The file that all kinds write to, and one consumer of each kind."""

    def __init__(self, dsn: str, client: str, records: Records) -> None:
        self.dsn = dsn
        self.client = client
        self.stop = threading.Event()
        self._records = records

    def note(self, kind: str, messages: list[ReceivedMessage]) -> None:
        """Record deliveries."""
        now, group = time.monotonic(), f"{self.client}-{kind}"
        self._records.write(
            *(
                Record(
                    now,
                    Event.SUCCEEDED,
                    f"{each.queue.topic}:{each.queue.queue_id}",
                    each.queue_offset,
                    group,
                    each.body.decode(),
                )
                for each in messages
            )
        )

    def push(self, kind: str) -> PushConsumer:
        """A push consumer with threads, not started yet."""
        consumer = PushConsumer(f"{self.client}-{kind}", self.dsn, consume_from_where=_BEGIN)
        consumer.subscribe(GROUPS[kind])
        status: Any = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        if kind == "orderly":
            status = ConsumeOrderlyStatus.SUCCESS

        def listen(messages: list[ReceivedMessage]) -> Any:
            self.note(kind, messages)
            return status

        def listen_once(messages: list[ReceivedMessage], connection: Connection) -> Any:
            rows = [{"name": each.body.decode(), "group": f"{self.client}-{kind}"} for each in messages]
            connection.execute(text("INSERT INTO public.ledger (name, group_name) VALUES (:name, :group)"), rows)
            return listen(messages)

        if kind == "exactly-once":
            consumer.register_listener(listen_once, exactly_once=True)
        else:
            consumer.register_listener(listen, orderly=kind == "orderly")
        return consumer

    def poll(self) -> None:
        """Run a lite pull consumer until the end."""
        consumer = LitePullConsumer(f"{self.client}-lite-pull", self.dsn, consume_from_where=_BEGIN)
        consumer.subscribe(TOPIC)
        with consumer:
            while not self.stop.is_set():
                self.note("lite-pull", consumer.poll(timedelta(seconds=0.5)))

    async def consume_in_loop(self) -> None:
        """Run an asyncio consumer until the end."""
        consumer = AsyncPushConsumer(f"{self.client}-asyncio", self.dsn, consume_from_where=_BEGIN)
        await consumer.subscribe(TOPIC)

        async def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
            self.note("asyncio", messages)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer.register_listener(listen)
        async with consumer:
            while not self.stop.is_set():
                await asyncio.sleep(0.2)


def main(arguments: dict[str, str]) -> None:
    log_to_stderr()
    work = Consumption(arguments["dsn"], arguments["client"], Records(Path(arguments["path"])))
    signal.signal(signal.SIGTERM, lambda *_: work.stop.set())
    others: list[Callable[[], None]] = [work.poll, lambda: asyncio.run(work.consume_in_loop())]
    with ExitStack() as stack:
        for kind in ("concurrent", "orderly", "exactly-once", "late"):
            stack.enter_context(work.push(kind))
        threads = [threading.Thread(target=each, daemon=True) for each in others]
        for thread in threads:
            thread.start()
        work.stop.wait()
        for thread in threads:
            thread.join(20)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
