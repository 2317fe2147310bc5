"""The archives of a release: the files that the wheel and the sdist must contain, and their actual files."""

import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from zipfile import ZipFile

#: The sources of the wheel, as `[tool.hatch.build.targets.wheel]` in pyproject.toml names them.
SOURCES: Final = ("mqdb", "client/mqdb_client", "migrations", "alembic.ini", "pyspark_mqdb.py")

#: Files of the sdist besides the sources.
_BESIDE: Final = (".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml")
_METADATA: Final = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")

#: A wheel without one of these files could be installed, but would fail later.
_ESSENTIAL: Final = (
    *(r"mqdb/sql/.*\.sql", r"mqdb/migrations/versions/.*\.py", r"mqdb/alembic\.ini", r"mqdb/selector/.*\.lark"),
    *(r"mqdb/dashboard/templates/.*\.html", r"mqdb/dashboard/static/.*\.css", r"mqdb/dashboard/static/.*\.js"),
    *(r"mqdb/py\.typed", r"mqdb_client/py\.typed", r"pyspark_mqdb\.py", r"mqdb/cli/demo_data/flights\.csv"),
)
_OF_TESTS: Final = re.compile(r"(^|/)(tests?|benchmarks|conftest\.py|test_[^/]*\.py|__pycache__)(/|$)|\.pyc$")


def names_in_wheel(tracked: Iterable[str], version: str) -> set[str]:
    """The names of the files in the wheel of a version, derived from the files that git tracks."""
    names = {f"mqdb-{version}.dist-info/{name}" for name in _METADATA}
    for path in _sources(tracked):
        is_inside = path.startswith(("migrations/", "alembic.ini"))
        names.add(f"mqdb/{path}" if is_inside else path.removeprefix("client/"))
    return names


def names_in_sdist(tracked: Iterable[str], version: str) -> set[str]:
    """The names of the files in the sdist of a version, derived from the files that git tracks."""
    return {f"mqdb-{version}/{path}" for path in (*_sources(tracked), *_BESIDE, "PKG-INFO")}


def _sources(tracked: Iterable[str]) -> list[str]:
    return [path for path in tracked if path in SOURCES or path.startswith(tuple(f"{each}/" for each in SOURCES))]


def names_in(archive: Path) -> set[str]:
    """The names of the files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        return {member.name for member in sdist.getmembers() if member.isfile()}


def problems_of(archive: Path, expected: set[str]) -> list[str]:
    """One sentence for each file that is missing from an archive or should not be in the archive."""
    found = names_in(archive)
    problems = [f"{archive.name} lacks {name}" for name in sorted(expected - found)]
    problems += [f"{archive.name} holds {name}, which is not a source" for name in sorted(found - expected)]
    problems += [f"{archive.name} holds {name}, a file of tests" for name in sorted(found) if _OF_TESTS.search(name)]
    if archive.suffix == ".whl":
        missing = [pattern for pattern in _ESSENTIAL if not any(re.fullmatch(pattern, name) for name in found)]
        problems += [f"{archive.name} holds no file like {pattern}" for pattern in missing]
    return problems
