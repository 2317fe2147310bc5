"""mqdb's public API: producer and consumers with their defaults, with batches, or in a group that pops."""

from collections.abc import Sequence
from datetime import timedelta

from benchmarks.peers.workers import work
from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeMode,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)


def main() -> None:
    asked = work.options()
    if asked.role != "consume":
        producer = Producer("bench", asked.dsn)
        producer.start()
        work.send(asked, lambda batch: _sender(producer, batch))
    elif asked.way == "poll100":
        _poll(asked)
    elif asked.way in ("pop10", "pop100"):
        _pop(asked, int(asked.way.removeprefix("pop")))
    else:
        _push(asked)


def _message() -> Message:
    return Message(work.TOPIC, work.body().encode(), tag=work.TAG, properties=work.PROPERTIES)


def _sender(producer: Producer, batch: int) -> work.Send:
    if batch == 1:
        return lambda: producer.send(_message())
    return lambda: producer.send_batch([_message() for _ in range(batch)])


def _start(asked: work.Options) -> ConsumeFromWhere:
    return ConsumeFromWhere.LAST_OFFSET if asked.follows else ConsumeFromWhere.FIRST_OFFSET


def _push(asked: work.Options) -> None:
    if asked.way == "push100":
        consumer = PushConsumer(
            asked.group,
            asked.dsn,
            consume_from_where=_start(asked),
            consume_message_batch_max_size=100,
            pull_batch_size=100,
        )
    else:
        if asked.way == "pushpop":
            with Admin(asked.dsn) as admin:
                admin.on_each(lambda one: one.groups.update(asked.group, consume_mode=ConsumeMode.POP)).check()
        consumer = PushConsumer(asked.group, asked.dsn, consume_from_where=_start(asked))
    consumer.subscribe(work.TOPIC)
    tally = work.Tally(asked)

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        tally.add([message.body for message in messages])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer.register_listener(listen)
    work.ready()
    consumer.start()
    tally.wait()
    tally.report(consumer.shutdown)


def _poll(asked: work.Options) -> None:
    consumer = LitePullConsumer(
        asked.group,
        asked.dsn,
        consume_from_where=_start(asked),
        pull_batch_size=100,
        auto_commit=False,
    )
    consumer.subscribe(work.TOPIC)
    work.ready()
    consumer.start()
    tally = work.Tally(asked)
    while not tally.is_over:
        messages = consumer.poll(timedelta(seconds=1))
        if messages:
            bodies = [message.body for message in messages]
            consumer.commit()
            tally.add(bodies)
    tally.report(consumer.shutdown)


def _pop(asked: work.Options, limit: int) -> None:
    consumer = SimpleConsumer(asked.group, asked.dsn, consume_from_where=_start(asked))
    consumer.subscribe(work.TOPIC)
    work.ready()
    consumer.start()
    tally = work.Tally(asked)
    while not tally.is_over:
        messages = consumer.receive(limit, timeout=timedelta(seconds=1))
        if messages:
            bodies = [message.body for message in messages]
            consumer.ack(messages)
            tally.add(bodies)
    tally.report(consumer.shutdown)


if __name__ == "__main__":
    main()
