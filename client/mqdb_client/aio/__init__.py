"""mqdb for asyncio: the names, options, errors and guarantees of the classes that `mqdb_client` has for threads.

async with AsyncProducer("orders-service") as producer:
    await producer.send(Message("orders", b"...", tag="paid"))
"""

from mqdb_client.aio.loop_sends import ids_that_may_be_stored
from mqdb_client.aio.producer import AsyncProducer

__all__ = ["AsyncProducer", "ids_that_may_be_stored"]
