"""No modules import each other in a cycle, not even for type hints.

So each can be read after the modules it imports.
"""

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import mqdb
import mqdb_client


def imports() -> dict[str, set[str]]:
    """The modules of the wheel, each with all modules that it imports, even under `if TYPE_CHECKING:`."""
    paths: dict[str, Path] = {}
    for package in (mqdb, mqdb_client):
        root = Path(str(package.__file__)).parent
        for path in root.rglob("*.py"):
            dotted = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            paths[dotted.removesuffix(".__init__")] = path
    return {name: imported(ast.parse(path.read_text()), paths) - {name} for name, path in paths.items()}


def imported(tree: ast.Module, known: Mapping[str, object]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0
            # A name of a package is one of its modules, or something that its __init__ has.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
    return found & known.keys()


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A cycle of the graph with its first module repeated at the end, or [] if the graph has no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # It lists them from what is imported to what imports it.
        return list(reversed(error.args[1]))
    return []


def test_no_modules_import_each_other() -> None:
    graph = imports()

    assert "mqdb_client.app.app" in graph["mqdb_client"]
    assert circle(graph) == []


def test_a_circle_is_found_behind_type_checking() -> None:
    texts = {
        "a.x": "if TYPE_CHECKING:\n    from a import y\n",
        "a.y": "def later():\n    from a.z import something\n",
        "a.z": "import a.x\n",
        "a.w": "import a.x\n",
    }

    found = circle({name: imported(ast.parse(text), texts) for name, text in texts.items()})

    assert found[0] == found[-1]
    assert set(found) == {"a.x", "a.y", "a.z"}
