"""What a process and those below it hold, as the benchmark of Spark shows it."""

import os
import subprocess
import sys

import pytest

from mqdb.cli.bench.memory import cpu_seconds_of, memory_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_what_runs_below_a_process_counts_as_its_workers() -> None:
    before = memory_of(os.getpid())

    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = memory_of(os.getpid())
        child.communicate(b"\n")

    assert held["JVM_RSS_MiB"] > 1
    assert held["Python_PSS_MiB"] > before["Python_PSS_MiB"] + 1


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()

    assert memory_of(child.pid) == {}
    assert cpu_seconds_of(child.pid) is None


def test_its_own_cpu_time_counts() -> None:
    found = cpu_seconds_of(os.getpid())

    assert found is not None
    assert found > 0
