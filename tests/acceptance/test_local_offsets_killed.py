"""The offset file of a broadcasting consumer killed while writing is always complete and never behind a commit."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqdb_client.consumer.offsets.local_offsets import LocalOffsets
from tests.acceptance.local_offsets_process import CREATED_AT, QUEUES

SCRIPT = Path(__file__).with_name("local_offsets_process.py")

KILLS_OF_A_SEED = 25

#: Of one put: open the new file, put the old one aside, put the new one in its place, make that last.
STEPS_OF_A_PUT = 4


class Writers:
    """A running local_offsets_process.py, which starts writers, one at a time."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, last_step: int = 0) -> int:
        """The pid of a new writer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{last_step}\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> int:
        """The next stored offset; 0 once the writer has exited."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Writers]:
    writers = Writers(tmp_path)
    with writers.process as process:
        yield writers
        os.killpg(process.pid, signal.SIGKILL)


def stored(directory: Path) -> int:
    """The offset that the file holds for all queues."""
    offsets = LocalOffsets(directory)
    offsets.open()
    offsets.close()
    [offset] = {known.next_offset if (known := offsets.get(queue, CREATED_AT)) else 0 for queue in QUEUES}
    return offset


def test_offsets_survive_a_writer_killed_before_any_step(writers: Writers, tmp_path: Path) -> None:
    for step in range(1, 2 * STEPS_OF_A_PUT + 1):
        writers.start(last_step=step)
        acknowledged = list(iter(writers.read, 0))

        assert len(acknowledged) == 1 + (step - 1) // STEPS_OF_A_PUT
        assert stored(tmp_path) - acknowledged[-1] in (0, 1)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_offsets_survive_writers_killed_at_any_time(writers: Writers, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged = 0
    for _ in range(KILLS_OF_A_SEED):
        writer = writers.start()
        for _ in range(chance.randrange(20)):
            acknowledged = writers.read()
            assert acknowledged, "the writer has ended by itself"
        os.kill(writer, signal.SIGKILL)
        acknowledged = max(acknowledged, *iter(writers.read, 0), 0)

        # What was said to be stored is, and at most the one that was being written as well.
        assert stored(tmp_path) - acknowledged in (0, 1)
        acknowledged = stored(tmp_path)
