"""procrastinate on psycopg: its synchronous connector sends, its asynchronous worker consumes."""

import asyncio
import logging
from typing import Any

import procrastinate

from benchmarks.peers.workers import work


def main() -> None:
    asked = work.options()
    # A line for each job would be measured, too.
    logging.disable(logging.WARNING)
    if asked.role == "consume":
        asyncio.run(_consume(asked))
        return
    pool = procrastinate.SyncPsycopgConnector(conninfo=asked.dsn, min_size=asked.senders, max_size=asked.senders)
    app, task = _app(pool, work.Tally(asked))
    app.open()
    work.send(asked, lambda batch: _sender(task, batch))


def _app(connector: Any, tally: work.Tally) -> tuple[Any, Any]:
    app = procrastinate.App(connector=connector)

    async def job(b: str, k: str) -> None:
        tally.add([b])

    return app, app.task(name=work.TOPIC, queue=work.TOPIC)(job)


def _sender(task: Any, batch: int) -> work.Send:
    if batch == 1:
        return lambda: task.defer(b=work.body(), **work.PROPERTIES)
    return lambda: task.batch_defer(*({"b": work.body(), **work.PROPERTIES} for _ in range(batch)))


async def _consume(asked: work.Options) -> None:
    tally = work.Tally(asked)
    app, _ = _app(procrastinate.PsycopgConnector(conninfo=asked.dsn, min_size=4, max_size=20), tally)
    async with app.open_async():
        work.ready()
        running = asyncio.create_task(
            app.run_worker_async(queues=[work.TOPIC], concurrency=10, install_signal_handlers=False)
        )
        while not tally.is_over and not running.done():
            await asyncio.sleep(0.02)
        if running.done():
            running.result()
        tally.report()


if __name__ == "__main__":
    main()
