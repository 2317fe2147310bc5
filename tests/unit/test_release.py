"""The release: its version, its notes, the contents of its archives, and its bill of materials."""

import json
import tarfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from zipfile import ZipFile

import pytest

import mqdb
from checks.archives import names_in_sdist, names_in_wheel, problems_of
from checks.release import also_stated, date_of, notes_of, version_of
from checks.sbom import LOCK, LOCKED_EXTRAS, bill_of_materials
from do import LOCKS
from tests.unit.test_checkout import pins, requirements

ROOT = Path(__file__).parents[2]

CHANGELOG = """# Changelog

## 0.2.0, not released yet

- new

## 0.1.0, 2026-12-31

The first.

- old

## 0.1.0rc1, 2026-12-01
"""

TRACKED = (
    *("mqdb/__init__.py", "mqdb/py.typed", "mqdb/sql/log/now.sql", "mqdb/selector/selector.lark"),
    *("mqdb/dashboard/templates/base.html", "mqdb/dashboard/static/a.css", "mqdb/dashboard/static/a.js"),
    *("mqdb/cli/demo_data/flights.csv", "client/mqdb_client/py.typed", "migrations/versions/0100_schema.py"),
    *("alembic.ini", "pyspark_mqdb.py", "tests/unit/test_release.py", "do.py"),
)


# -- version and notes --------------------------------------------------------------------------


def test_the_version_is_that_of_the_package_and_no_other_file_states_it() -> None:
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("*") if path.is_file()]

    assert version_of(ROOT) == mqdb.__version__
    assert also_stated(ROOT, [*files, "mqdb/__init__.py"], mqdb.__version__) == []


@pytest.mark.parametrize("statement", ['version = "{}"', "__version__ = '{}'", "VERSION={}", "version: {}"])
def test_a_second_statement_of_the_version_is_found(tmp_path: Path, statement: str) -> None:
    (tmp_path / "other.toml").write_text(f"# first\n{statement.format('0.1.0')}\n")

    assert also_stated(tmp_path, ["other.toml"], "0.1.0") == ["other.toml"]
    assert also_stated(tmp_path, ["other.toml"], "0.1") == also_stated(tmp_path, ["other.toml"], "0.2.0") == []


def test_a_package_without_a_version_cannot_be_released(tmp_path: Path) -> None:
    (tmp_path / "mqdb").mkdir()
    (tmp_path / "mqdb/__init__.py").write_text("__version__ = None\n")

    with pytest.raises(SystemExit, match="states 0 versions"):
        version_of(tmp_path)


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes_of(CHANGELOG, "0.1.0") == "The first.\n\n- old\n"
    assert notes_of(CHANGELOG, "0.2.0") == "- new\n"
    assert notes_of(CHANGELOG, "0.3.0") is None


def test_a_version_is_dated_when_it_is_released() -> None:
    assert date_of(CHANGELOG, "0.1.0") == "2026-12-31"
    assert date_of(CHANGELOG, "0.2.0") is None


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), mqdb.__version__)


# -- archives -----------------------------------------------------------------------------------


def wheel(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "mqdb-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def sdist(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "mqdb-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return path


def test_whole_archives_have_no_problem(tmp_path: Path) -> None:
    in_wheel, in_sdist = names_in_wheel(TRACKED, "1.0"), names_in_sdist(TRACKED, "1.0")

    assert {"mqdb/migrations/versions/0100_schema.py", "mqdb_client/py.typed", "mqdb/alembic.ini"} <= in_wheel
    assert {"mqdb-1.0/client/mqdb_client/py.typed", "mqdb-1.0/README.md"} <= in_sdist
    assert problems_of(wheel(tmp_path, in_wheel), in_wheel) == []
    assert problems_of(sdist(tmp_path, in_sdist), in_sdist) == []


def test_a_missing_and_a_strange_file_are_problems(tmp_path: Path) -> None:
    names = names_in_wheel(TRACKED, "1.0")
    archive = wheel(tmp_path, names - {"mqdb/py.typed"} | {"mqdb/notes.txt"})

    assert problems_of(archive, names) == [
        f"{archive.name} lacks mqdb/py.typed",
        f"{archive.name} holds mqdb/notes.txt, which is not a source",
        rf"{archive.name} holds no file like mqdb/py\.typed",
    ]


@pytest.mark.parametrize("name", ["tests/unit/a.py", "mqdb/test_a.py", "conftest.py", "mqdb/__pycache__/a.pyc"])
def test_files_of_tests_are_a_problem_even_if_git_has_them(tmp_path: Path, name: str) -> None:
    archive = sdist(tmp_path, [f"mqdb-1.0/{name}"])

    assert problems_of(archive, {f"mqdb-1.0/{name}"}) == [f"{archive.name} holds mqdb-1.0/{name}, a file of tests"]


# -- the bill of materials ----------------------------------------------------------------------


def bill() -> str:
    return bill_of_materials(ROOT, "1.2.3", datetime(2026, 12, 31, tzinfo=UTC), "ab" * 32)


def test_the_bill_has_each_locked_package_and_the_bundled_files() -> None:
    found = json.loads(bill())

    locked = {(name, line.partition("==")[2].split(" ")[0]) for name, line in pins(LOCK).items()}
    listed = {(each["name"], each["version"]) for each in found["components"] if "licenses" not in each}
    assert listed == locked
    assert {"htmx.org", "@picocss/pico"} == {each["name"] for each in found["components"] if "licenses" in each}
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert LOCKS[LOCK] == LOCKED_EXTRAS


def test_the_bill_is_about_this_version_and_names_what_it_requires() -> None:
    found = json.loads(bill())

    mqdb = found["metadata"]["component"]
    [depends_on] = [each["dependsOn"] for each in found["dependencies"] if each["ref"] == mqdb["bom-ref"]]
    assert (mqdb["name"], mqdb["version"], mqdb["licenses"]) == ("mqdb", "1.2.3", [{"license": {"id": "Apache-2.0"}}])
    assert len(depends_on) >= len(requirements()[""]) + len(requirements()["server"])


def test_the_bill_is_the_same_each_time_and_names_no_place() -> None:
    text = bill()

    assert text == bill()
    assert text.count("://") == 1  # the schema of the format
    assert str(ROOT) not in text
