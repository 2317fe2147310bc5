"""Writes an offset file until it is killed; run as a script by test_local_offsets_killed.

    python local_offsets_process.py DIRECTORY

For each number on its input it forks a writer, which prints its pid; after the writer has exited, 0 is printed. The
writer repeatedly stores the same offset for all queues, one higher each time, and prints each stored offset. After the
first offset, the writer kills itself before the step with that number; with 0 it waits to be killed. A step opens or
renames a file.
"""

import os
import signal
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NoReturn

from mqdb.common.message import MessageQueue
from mqdb_client.consumer.offsets.local_offsets import LocalOffset, LocalOffsets

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(8)]
CREATED_AT = datetime(2024, 2, 29, tzinfo=UTC)


def say(number: int) -> None:
    # One write: what is said is said, also when the process is killed.
    os.write(1, f"{number}\n".encode())


def die_before_step(number: int) -> None:
    steps = count(1)

    def audit(event: str, _arguments: object) -> None:
        if event in ("open", "os.rename") and next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def write(directory: Path, last_step: int) -> NoReturn:
    offsets = LocalOffsets(directory)
    offsets.open()
    known = offsets.get(QUEUES[0], CREATED_AT)
    first = known.next_offset + 1 if known else 1
    for number in count(first):
        offsets.put(dict.fromkeys(QUEUES, LocalOffset(CREATED_AT, number)))
        say(number)
        if number == first and last_step:
            die_before_step(last_step)
    raise AssertionError("it counts for ever")


def main(directory: str) -> None:
    for line in sys.stdin:
        writer = os.fork()
        if not writer:
            say(os.getpid())  # by itself, or an offset could come first
            write(Path(directory), int(line))
        os.waitpid(writer, 0)
        say(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
