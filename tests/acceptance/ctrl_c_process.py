"""An asynchronous consumer of group `readers` whose listener blocks its loop; run as a script by test_ctrl_c.

    python ctrl_c_process.py DSN HOW KIND

KIND is the kind of consumer that reads `orders`. HOW selects the handler of Ctrl-C: `asyncio.run`, `uvloop.run`, or,
with `run_until_complete`, Python itself, which raises KeyboardInterrupt in the listener. Prints `blocked`, then the
error that ends the loop.
"""

import asyncio
import sys
import time
from typing import Any

import uvloop

from mqdb_client import ConsumeFromWhere
from mqdb_client.aio import AsyncPushConsumer
from tests.fixtures.aio_consumers import KINDS


async def block(_messages: list[Any], *_: object) -> Any:
    print("blocked", flush=True)  # noqa: T201
    time.sleep(600)


async def work(dsn: str, kind: str) -> None:
    consumer = AsyncPushConsumer("readers", dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    await consumer.subscribe("orders")
    consumer.register_listener(block, **KINDS[kind][0])
    async with consumer:
        await asyncio.Event().wait()


def main(dsn: str, how: str, kind: str) -> None:
    match how:
        case "asyncio.run":
            asyncio.run(work(dsn, kind))
        case "uvloop.run":
            uvloop.run(work(dsn, kind))
        case "run_until_complete":
            asyncio.new_event_loop().run_until_complete(work(dsn, kind))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException as error:  # noqa: BLE001 - which it is counts
        print(type(error).__name__, flush=True)  # noqa: T201
