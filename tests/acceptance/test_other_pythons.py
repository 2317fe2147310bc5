"""The unit tests pass on each supported Python that this machine has; the others are named."""

import sys

import pytest

from tests.fixtures.pythons import ROOT, installation, require, run, supported

#: Those of requirements-test.lock, and the one that needs another PostgreSQL.
EXTRAS = "compression,contrib,docs,embedded,grpc,metrics,otel,reload,server,spark,test"

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", [each for each in supported() if each != RUNNING])
def test_the_unit_tests_pass(version: str) -> None:
    program = require(version)

    with installation(program, f"mqdb[{EXTRAS}] @ {ROOT.as_uri()}") as programs:
        run(
            *(str(programs / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"),
            *("--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), str(ROOT / "tests" / "unit")),
        )
