"""The docstring of each package names all its modules, as a map of the folder."""

import ast
import re
from pathlib import Path

import pytest

import mqdb
import mqdb_client

ROOTS = [Path(str(package.__file__)).parent for package in (mqdb, mqdb_client)]
PACKAGES = {
    path.parent.relative_to(root.parent).as_posix(): path for root in ROOTS for path in root.rglob("__init__.py")
}


def modules(package: Path) -> set[str]:
    found = {path.stem for path in package.parent.glob("*.py")} - {"__init__", "__main__"}
    return found | {path.parent.name for path in package.parent.glob("*/__init__.py")}


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_names_its_modules(name: str) -> None:
    package = PACKAGES[name]
    map_ = ast.get_docstring(ast.parse(package.read_text())) or ""

    assert {module for module in modules(package) if not re.search(rf"\b{module}\b", map_)} == set()
