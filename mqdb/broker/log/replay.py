"""Replay: whether it was done before, and where it goes. RocketMQ has nothing like it; its users reset offsets."""

from sqlalchemy import Connection

from mqdb.broker.log import sink
from mqdb.store.engine import driver, translates
from mqdb.store.log import sink as statements


@translates
def find_write(connection: Connection, write_id: str) -> int | None:
    """How many messages the batch job with this writeId has written; None where none has, or it has not ended."""
    named = {"sink_id": f"batch:{write_id}", "query_id": None}
    row = driver(connection).execute(statements.FIND_NEWEST, named).fetchone()
    return None if row is None else int(row[2])


@translates
def write_queue_nums(connection: Connection, topic: str) -> int:
    """How many queues of a topic take messages. Raises TopicNotFound, TopicNotWritable."""
    return len(sink.write_queue_keys(driver(connection), topic))
