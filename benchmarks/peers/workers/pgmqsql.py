"""PGMQ's SQL functions, called through psycopg as prepared statements, with one connection for each thread."""

import json
from typing import Any

import psycopg

from benchmarks.peers.workers import work

#: Seconds until a message that was read and not deleted is seen again.
_INVISIBLE = 120
_HEADERS = json.dumps({"tag": work.TAG, **work.PROPERTIES})

_SEND = "SELECT pgmq.send(%s, %s::jsonb, %s::jsonb)"
_SEND_BATCH = "SELECT pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])"
_READ = f"SELECT msg_id, message, headers FROM pgmq.read(%s, {_INVISIBLE}, %s)"
#: Looks every 10 ms, for a second.
_READ_OR_WAIT = f"SELECT msg_id, message, headers FROM pgmq.read_with_poll(%s, {_INVISIBLE}, %s, 1, 10)"
_DELETE = "SELECT pgmq.delete(%s, %s::bigint[])"


def main() -> None:
    asked = work.options()
    if asked.role == "consume":
        _consume(asked)
    else:
        work.send(asked, lambda batch: _sender(asked, batch))


def _cursor(asked: work.Options) -> psycopg.Cursor[Any]:
    return psycopg.connect(asked.dsn, autocommit=True).cursor()


def _message() -> str:
    return json.dumps({"b": work.body()})


def _sender(asked: work.Options, batch: int) -> work.Send:
    cursor = _cursor(asked)
    if batch == 1:
        return lambda: cursor.execute(_SEND, (work.TOPIC, _message(), _HEADERS), prepare=True).fetchone()
    headers = [_HEADERS] * batch

    def send_batch() -> object:
        values = (work.TOPIC, [_message() for _ in range(batch)], headers)
        return cursor.execute(_SEND_BATCH, values, prepare=True).fetchall()

    return send_batch


def _consume(asked: work.Options) -> None:
    cursor = _cursor(asked)
    read = _READ_OR_WAIT if asked.follows else _READ
    limit = 10 if asked.way == "read10" else 100
    work.ready()
    tally = work.Tally(asked)
    while not tally.is_over:
        messages = cursor.execute(read, (work.TOPIC, limit), prepare=True).fetchall()
        if messages:
            cursor.execute(_DELETE, (work.TOPIC, [message[0] for message in messages]), prepare=True).fetchall()
            tally.add([message[1]["b"] for message in messages])
        elif not asked.follows:
            break
    tally.report()


if __name__ == "__main__":
    main()
