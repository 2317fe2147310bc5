"""The memory of a process and of its children, as the benchmark of Spark shows it."""

import os
import subprocess
import sys

import pytest

from benchmarks.bench.memory import cpu_seconds_of, memory_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


#: Says that it runs, starts one below itself when it is told to, says so, and waits for the end.
PARENT = """
import subprocess, sys
print(flush=True); input()
with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as child:
    child.stdout.readline()
    print(flush=True); input()
    child.communicate(b"\\n")
"""


def test_what_runs_below_a_process_counts_as_its_workers() -> None:
    # Not below this process: here PostgreSQL runs, whose memory comes and goes.
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        before = memory_of(parent.pid)
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        parent.stdout.readline()
        held = memory_of(parent.pid)
        parent.communicate(b"\n")

    assert before["JVM_RSS_MiB"] > 1
    assert before["Python_PSS_MiB"] == 0
    assert held["Python_PSS_MiB"] > 1


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()

    assert memory_of(child.pid) == {}
    assert cpu_seconds_of(child.pid) is None


def test_its_own_cpu_time_counts() -> None:
    found = cpu_seconds_of(os.getpid())

    assert found is not None
    assert found > 0
