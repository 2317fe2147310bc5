"""pgqueuer on asyncpg and uvloop, as its documentation advises."""

import asyncio
import contextlib
import time
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgPoolDriver

from benchmarks.peers.workers import work


def main() -> None:
    asked = work.options()
    uvloop.run(_consume(asked) if asked.role == "consume" else _send(asked))


async def _send(asked: work.Options) -> None:
    pool = await asyncpg.create_pool(asked.dsn, min_size=asked.senders, max_size=asked.senders)
    queries = Queries(AsyncpgPoolDriver(pool))

    async def call() -> None:
        if asked.batch == 1:
            await queries.enqueue(work.TOPIC, work.body().encode(), headers=work.PROPERTIES)
            return
        bodies = [work.body().encode() for _ in range(asked.batch)]
        headers = [work.PROPERTIES] * asked.batch
        await queries.enqueue([work.TOPIC] * asked.batch, bodies, [0] * asked.batch, headers=headers)

    for _ in range(0 if asked.role == "load" else 5):
        await call()
    work.ready()
    began = time.monotonic()
    tally = work.Tally(asked, began=began)
    late = 0

    async def until_time() -> None:
        while time.monotonic() < began + asked.seconds:
            await call()
            tally.count += asked.batch

    if asked.role == "produce":
        await asyncio.gather(*(until_time() for _ in range(asked.senders)))
    elif asked.role == "load":
        while tally.count < asked.count:
            await call()
            tally.count += asked.batch
    else:
        while tally.count < asked.seconds * asked.rate:
            wait = began + tally.count / asked.rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            elif wait < -0.05:
                late += 1
            await call()
            tally.count += 1
    tally.ended = time.monotonic()
    tally.report(late=late)


async def _consume(asked: work.Options) -> None:
    tally = work.Tally(asked)
    consumer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(asked.dsn))

    async def job(each: Any) -> None:
        tally.add([each.payload])

    consumer.entrypoint(work.TOPIC)(job)
    work.ready()
    batch = 100 if asked.way == "batch100" else 10
    running = asyncio.create_task(consumer.run(batch_size=batch, dequeue_timeout=timedelta(seconds=30)))
    while not tally.is_over and not running.done():
        await asyncio.sleep(0.02)
    if running.done():
        running.result()
    count, ended = tally.count, tally.ended
    # A clean end: jobs that were taken are finished and logged.
    consumer.shutdown.set()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(running, 10)
    tally.count, tally.ended = count, ended
    tally.report()


if __name__ == "__main__":
    main()
