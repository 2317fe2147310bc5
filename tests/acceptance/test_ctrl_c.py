"""Ctrl-C ends a program whose asynchronous listener blocks the loop, whichever handler is installed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.fixtures.broker import append, topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

_PROGRAM = Path(__file__).with_name("ctrl_c_process.py")
_HOW = ("asyncio.run", "uvloop.run", "run_until_complete")
_KINDS = ("concurrent", "orderly", "transactional")
_SECONDS = 60


@pytest.mark.parametrize(
    ("how", "kind"),
    usually(
        ("asyncio.run", "concurrent"),
        ("run_until_complete", "orderly"),
        of=[(how, kind) for how in _HOW for kind in _KINDS],
    ),
)
def test_ctrl_c_ends_a_program_whose_listener_blocks_the_loop(
    broker: Connection, database: Database, how: str, kind: str
) -> None:
    append(broker, topic(broker), "x")
    command = [sys.executable, str(_PROGRAM), database.dsn, how, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocked\n"
            # The first Ctrl-C asks asyncio.run to cancel the program, which the blocked loop cannot hear.
            for _ in range(1 if how == "run_until_complete" else 2):
                process.send_signal(signal.SIGINT)
                _wait_until_heard(process)
            said, _ = process.communicate(timeout=_SECONDS)
        finally:
            process.kill()

    assert said == "KeyboardInterrupt\n"


def _wait_until_heard(process: "subprocess.Popen[str]") -> None:
    """Wait until no SIGINT is pending: two signals sent at once count as one."""
    status = Path(f"/proc/{process.pid}/status")

    def is_heard() -> bool:
        if process.poll() is not None:
            return True
        masks = dict(
            line.split(":\t") for line in status.read_text().splitlines() if line.startswith(("ShdPnd", "SigPnd"))
        )
        return not any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks.values())

    wait_until(is_heard)
