"""The wheel is complete: in an empty virtual environment it migrates a database and runs the command line."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import mqdb
from checks.archives import names_in, names_in_wheel
from tests.fixtures.postgres import Database, query
from tests.fixtures.pythons import ROOT, run

_MODULES = ("mqdb/__init__.py", "mqdb_client/__init__.py", "pyspark_mqdb.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    [built] = folder.glob("mqdb-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The `bin` folder of a virtual environment with only the built wheel and its dependencies."""
    folder = wheel.parent
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    # Compiled is what is imported; all of it would take longer than the rest of this.
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    run(*install, "--require-hashes", "--requirement", str(ROOT / "requirements.lock"))
    run(*install, "--no-deps", str(wheel))
    return programs


def test_the_wheel_holds_every_file_of_the_packages_and_the_migrations(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    expected = names_in_wheel(listed, mqdb.__version__)

    assert len(expected) > 300
    assert expected <= names_in(wheel)


def test_an_unpacked_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    # With the libraries of this Python: an environment of its own takes a minute to install.
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # One process, because it compiles all that it imports.
    program = (
        "import importlib.util, mqdb, mqdb_client; from mqdb.cli.app import run;"
        "print(mqdb.__file__, mqdb_client.__file__, importlib.util.find_spec('pyspark_mqdb').origin);"
        "run(['--version']); run(['migrate', '--sql'])"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "MQDB_HOME": str(tmp_path / "home")}

    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    where, version, *schema = done.stdout.splitlines()
    assert where.split() == [str(tmp_path / each) for each in _MODULES]
    assert version == f"mqdb {mqdb.__version__}"
    assert any(line.startswith("CREATE TABLE mqdb.commit_log") for line in schema)


@pytest.mark.long
def test_an_installed_wheel_migrates_an_empty_database(installed: Path, empty_database: Database) -> None:
    run(str(installed / "mqdb"), "migrate", "--dsn", empty_database.dsn)

    assert query(empty_database.dsn, "SELECT version_num FROM mqdb.alembic_version") is not None
    assert "the newest" in run(str(installed / "mqdb"), "migrate", "--current", "--dsn", empty_database.dsn)
    assert "CREATE TABLE mqdb.commit_log" in run(str(installed / "mqdb"), "migrate", "--sql")


@pytest.mark.long
def test_an_installed_wheel_carries_the_demo_and_the_types(installed: Path) -> None:
    look = (
        "import mqdb, mqdb_client; from pathlib import Path;"
        "server, client = Path(mqdb.__file__).parent, Path(mqdb_client.__file__).parent;"
        "print(len(list(server.glob('cli/demo_data/flights.csv*'))), *(path.exists() for path in"
        " (server / 'py.typed', server / 'alembic.ini', client / 'py.typed')))"
    )

    assert run(str(installed / "python"), "-c", look).split() == ["1", "True", "True", "True"]


@pytest.mark.long
def test_an_installed_wheel_reads_selectors(installed: Path) -> None:
    assert "java_int" in run(str(installed / "mqdb"), "selector", "explain", "a > 5")


@pytest.mark.long
def test_an_installed_wheel_has_the_module_by_which_spark_finds_the_data_source(installed: Path) -> None:
    look = "import importlib.util; print(importlib.util.find_spec('pyspark_mqdb').origin)"

    assert run(str(installed / "python"), "-c", look).endswith("site-packages/pyspark_mqdb.py\n")
