"""A producer of group `senders` without a shutdown; run as a script by test_program_end.

    python exit_process.py DSN HOW COUNT

Sends COUNT messages to topic `orders` asynchronously, prints `end`, and exits:

    open        the producer is simply open
    generator   the producer is in the `with` of a generator
    del         a __del__ shuts it down
    late        a function called by `atexit` starts it, and a __del__ shuts it down
    fork        a child exits first, which was forked while a lock of the producer was held
"""

import atexit
import os
import sys
from collections.abc import Generator
from datetime import timedelta

from mqdb.settings import Settings
from mqdb_client import Message, Producer


class Application:
    def __init__(self, dsn: str) -> None:
        self.producer = producer_of(dsn)
        self.producer.start()

    def __del__(self) -> None:
        self.producer.shutdown()


def producer_of(dsn: str) -> Producer:
    return Producer("senders", settings=Settings(dsn=dsn, send_message_timeout=timedelta(seconds=100)))


def generator_of(dsn: str) -> Generator[None, Message, None]:
    with producer_of(dsn) as producer:
        while True:
            producer.send_async((yield))


def hand_in(producer: Producer, count: int) -> None:
    for _ in range(count):
        producer.send_async(Message("orders", "x"))


def start_late(dsn: str, count: int) -> None:
    global kept
    kept = Application(dsn)
    hand_in(kept.producer, count)


def main(dsn: str, how: str, count: int) -> object:
    match how:
        case "open" | "fork":
            producer = producer_of(dsn)
            producer.start()
            hand_in(producer, count)
            if how == "fork":
                producer._life.acquire()
                if (child := os.fork()) == 0:
                    sys.exit(17)
                producer._life.release()
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
            return producer
        case "generator":
            generator = generator_of(dsn)
            next(generator)
            for _ in range(count):
                generator.send(Message("orders", "x"))
            return generator
        case "del":
            application = Application(dsn)
            hand_in(application.producer, count)
            return application
        case _:
            return atexit.register(start_late, dsn, count)


if __name__ == "__main__":
    kept = main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    os.write(1, b"end\n")
