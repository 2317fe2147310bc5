"""No two public classes of the package have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

import mqdb
import mqdb_client


def test_no_two_public_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in (mqdb, mqdb_client):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path.relative_to(root.parent).as_posix())

    assert {name: found for name, found in places.items() if len(found) > 1} == {}
