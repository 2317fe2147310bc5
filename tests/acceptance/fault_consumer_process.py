"""A member of a fault group; run as a script by test_consumer_faults.

    python fault_consumer_process.py '{"group": {...}, "kind": "threads"|"asyncio", ...}'

The other keys are a dsn, the name of the member, a path for its records, and a seed. Consumes until SIGTERM. Logs to
standard error; unexpected errors in the log are marked UNEXPECTED.
"""

import json
import logging
import random
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb_client import ConsumeConcurrentlyStatus, ConsumeFromWhere, ConsumeOrderlyStatus, PushConsumer
from tests.fixtures.fault_group import Event, Fate, FaultGroup, Record, Records
from tests.fixtures.loop_consumers import CLASSES

#: Deliveries after the first one; then a message is dead.
MAX_RECONSUME_TIMES: Final = 2

CONSUME_TIMEOUT: Final = timedelta(seconds=0.7)
_HANG_SECONDS: Final = 1.5

#: The longest that a call takes which does not hang.
_WORK_SECONDS: Final = 0.006

#: What its members take for expired after half of that; the rest is for a machine that pauses them.
QUEUE_LOCK_EXPIRY: Final = timedelta(seconds=4)


class ListenerFault(Exception):
    """The error that the listener raises on purpose."""


class Listener:
    """Applies to each delivery its fate, and records it before returning."""

    def __init__(self, group: FaultGroup, member: str, records: Records, seed: int) -> None:
        self._group = group
        self._member = member
        self._records = records
        self._seed = seed
        self._work = random.Random(f"{seed} {member}")
        self._success: str = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        self._later: str = ConsumeConcurrentlyStatus.RECONSUME_LATER
        if group.orderly:
            self._success = ConsumeOrderlyStatus.SUCCESS
            self._later = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    def consume(self, messages: list[ReceivedMessage]) -> Any:
        """Consume messages in one call; all of them have the same fate."""
        return self._consume(messages)

    def consume_in_transaction(self, messages: list[ReceivedMessage], connection: Connection) -> Any:
        """Consume messages, and insert a row for each."""
        rows = [{"name": message.body.decode(), "member": self._member} for message in messages]
        connection.execute(text("INSERT INTO public.business (name, member) VALUES (:name, :member)"), rows)
        return self._consume(messages)

    def _consume(self, messages: list[ReceivedMessage]) -> Any:
        self._write(Event.STARTED, messages)
        fate = self._fate(messages)
        time.sleep(_HANG_SECONDS if fate is Fate.HUNG else self._work.uniform(0, _WORK_SECONDS))
        self._write(Event.SUCCEEDED if fate is Fate.CONSUMED else Event.FAILED, messages)
        if fate is Fate.CONSUMED:
            return self._success
        if fate is Fate.DECLINED:
            return self._later
        raise ListenerFault(fate)

    def _fate(self, messages: Sequence[ReceivedMessage]) -> Fate:
        fates = [self._group.fate(self._seed, each.body.decode(), each.reconsume_times) for each in messages]
        return next((fate for fate in fates if fate is not Fate.CONSUMED), Fate.CONSUMED)

    def _write(self, event: Event, messages: Sequence[ReceivedMessage]) -> None:
        now = time.monotonic()
        records = (
            Record(
                now,
                event,
                f"{each.queue.topic}:{each.queue.queue_id}",
                each.queue_offset,
                self._member,
                each.body.decode(),
                each.reconsume_times,
            )
            for each in messages
        )
        self._records.write(*records)


def mark_unexpected(record: logging.LogRecord) -> bool:
    """Drop the listener's own faults from the log, and mark errors that were not translated."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not isinstance(error, MqdbError | ListenerFault):
        record.msg = f"UNEXPECTED: {record.msg}"
    return not isinstance(error, ListenerFault)


def main(arguments: dict[str, Any]) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(mark_unexpected)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", handlers=[handler])
    group = FaultGroup(**arguments["group"])
    member, records = arguments["member"], Records(Path(arguments["records"]))
    listener = Listener(group, member, records, arguments["seed"])
    consumer = CLASSES[arguments["kind"]](
        group.name,
        arguments["dsn"],
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=group.batch_max_size,
        max_reconsume_times=MAX_RECONSUME_TIMES,
        consume_timeout=CONSUME_TIMEOUT,
        suspend_current_queue_time=timedelta(milliseconds=20),
        queue_lock_expiry=QUEUE_LOCK_EXPIRY,
        persist_consumer_offset_interval=timedelta(seconds=1),
    )
    consumer.subscribe(group.name)
    consume = listener.consume_in_transaction if group.exactly_once else listener.consume
    consumer.register_listener(consume, orderly=group.orderly, exactly_once=group.exactly_once)
    threading.Thread(target=report_join, args=(consumer, member, records), daemon=True).start()
    run(consumer)


def report_join(consumer: PushConsumer, member: str, records: Records) -> None:
    """Report that the member has joined. From then on SIGTERM makes it leave in an orderly way."""
    while not consumer.assignment:
        time.sleep(0.02)
    records.write(Record(time.monotonic(), Event.JOINED, member=member))


def run(consumer: PushConsumer) -> None:
    """Run until SIGTERM. If the broker is down at the start, retry as a supervisor would."""
    while True:
        try:
            return consumer.run()
        except BrokerUnavailable:
            threading.Event().wait(0.1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
