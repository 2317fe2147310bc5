"""Each part of the front for RocketMQ's clients gets its dependencies in its constructor.

The constructor does not modify other parts.
"""

import ast
from pathlib import Path

import pytest

import mqdb.remoting

MODULES = sorted(Path(mqdb.remoting.__file__).parent.rglob("*.py"))


def changed_by(constructor: ast.FunctionDef) -> list[str]:
    """The attributes of its arguments that a constructor assigns or extends."""
    targets = [target for node in ast.walk(constructor) if isinstance(node, ast.Assign) for target in node.targets]
    for node in ast.walk(constructor):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("add", "append"):
            targets.append(node.func.value)
    found = [ast.unparse(target) for target in targets if isinstance(target, ast.Attribute)]
    return [each for each in found if not each.startswith("self.")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_constructor_changes_no_other_part(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text()))
    constructors = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__init__"]

    assert [each for constructor in constructors for each in changed_by(constructor)] == []
