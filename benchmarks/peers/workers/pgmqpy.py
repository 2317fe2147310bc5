"""PGMQ, used through its Python client."""

from pgmq import PGMQueue

from benchmarks.peers.workers import work

_INVISIBLE = 120
_HEADERS = {"tag": work.TAG, **work.PROPERTIES}


def main() -> None:
    asked = work.options()
    queue = PGMQueue(conn_string=asked.dsn, pool_size=max(asked.senders, 2), init_extension=False, vt=_INVISIBLE)
    if asked.role == "consume":
        _consume(asked, queue)
    else:
        work.send(asked, lambda batch: _sender(queue, batch))


def _sender(queue: PGMQueue, batch: int) -> work.Send:
    if batch == 1:
        return lambda: queue.send(work.TOPIC, {"b": work.body()}, headers=_HEADERS)
    headers = [_HEADERS] * batch
    return lambda: queue.send_batch(work.TOPIC, [{"b": work.body()} for _ in range(batch)], headers=headers)


def _consume(asked: work.Options, queue: PGMQueue) -> None:
    waiting = {"max_poll_seconds": 1, "poll_interval_ms": 10}
    work.ready()
    tally = work.Tally(asked)
    while not tally.is_over:
        if asked.follows:
            found = queue.read_with_poll(work.TOPIC, vt=_INVISIBLE, qty=100, **waiting)
        else:
            found = queue.read(work.TOPIC, vt=_INVISIBLE, qty=100)
        messages = found if isinstance(found, list) else [found] if found else []
        if messages:
            queue.delete_batch(work.TOPIC, [message.msg_id for message in messages])
            tally.add([message.message["b"] for message in messages])
        elif not asked.follows:
            break
    tally.report()


if __name__ == "__main__":
    main()
