"""The ledger of Spark's sink, for reports. `mqdb.store.log.sink` writes it."""

from sqlalchemy import BigInteger, Connection, cast, func, select

from mqdb.store.engine import translates
from mqdb.store.tables import sink_batch


@translates
def messages_of_batch(connection: Connection, query_id: str, batch_id: int) -> int | None:
    """The number of messages appended by a batch of a streaming query; None if the ledger does not have the batch."""
    is_own = sink_batch.c.principal == func.mqdb.sink_principal()
    is_batch = (sink_batch.c.query_id == query_id) & (sink_batch.c.batch_id == batch_id)
    total = select(cast(func.sum(sink_batch.c.messages), BigInteger)).where(is_own, is_batch)
    return connection.execute(total).scalar_one()
