"""mqdb packed as a zip, imported by a Python without mqdb."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mqdb.pipeline.packing import pack


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "mqdb.zip"
    pack(path)
    return path


def without_mqdb(**more: str) -> dict[str, str]:
    """An environment in which the libraries can be imported, but not mqdb."""
    return os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")} | more


def base_python() -> str:
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def test_it_is_imported_where_mqdb_is_not_installed(packed: Path, tmp_path: Path) -> None:
    uses = "import pyspark_mqdb, mqdb_client; from mqdb.selector import compile_selector; compile_selector('a > 1')"
    environment = without_mqdb()

    def run(program: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [base_python(), "-c", program]
        return subprocess.run(command, env=environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert "No module named 'mqdb.errors'" in run("import mqdb.errors").stderr
    both = os.pathsep.join([str(packed), environment["PYTHONPATH"]])
    assert (run(uses, PYTHONPATH=both).stderr, pack(packed) > 100) == ("", True)


def test_it_is_the_same_each_time(packed: Path, tmp_path: Path) -> None:
    pack(tmp_path / "again.zip")

    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
