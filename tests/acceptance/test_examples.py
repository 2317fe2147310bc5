"""The examples of frameworks pass their own tests, in a separate pytest, as for a user who has copied one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)  # a busy machine takes minutes to start PostgreSQL and the worker of Django
def test_the_examples_pass_their_tests() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MQDB_", "PYTEST"))}
    environ |= {name: os.environ[name] for name in ("MQDB_PG_BIN", "MQDB_PG_USER") if name in os.environ}
    environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "examples/pytest.ini", "examples"]

    ended = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=ROOT, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout
