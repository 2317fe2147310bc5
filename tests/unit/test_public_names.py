"""Applications only need to import mqdb_client: it exports every name in its signatures."""

import ast
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mqdb_client
from mqdb_client import Admin, BrokerAdmin, TopicReader, errors
from mqdb_client.admin.broker_access import BrokerAccess

PUBLIC = [getattr(mqdb_client, name) for name in mqdb_client.__all__]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.py"))

#: Where a method of a subject is found: `admin.topics`, an object that nobody makes or names.
SUBJECTS = [type(value) for value in vars(Admin(dsn="postgresql://nobody@localhost/nothing")).values()]
SUBJECTS = [kind for kind in SUBJECTS if kind.__module__.startswith("mqdb_client.admin") and kind is not BrokerAccess]

#: What only mqdb itself makes.
MADE_BY_US = [*SUBJECTS, BrokerAdmin, TopicReader]


def functions_of(public: object) -> Iterator[Any]:
    """Objects with annotations: a function, or a class and its public methods and properties."""
    if inspect.isfunction(public):
        yield public
    if not inspect.isclass(public):
        return
    if issubclass(public, tuple) or hasattr(public, "__dataclass_fields__"):
        yield public
    for name in dir(public):
        member = inspect.getattr_static(public, name)
        member = getattr(member, "__func__", getattr(member, "fget", member))
        is_ours = inspect.isfunction(member) and member.__module__.startswith("mqdb")
        if is_ours and (not name.startswith("_") or (name == "__init__" and public not in MADE_BY_US)):
            yield member


def hints_of(public: Any) -> Iterator[Any]:
    """The types of arguments and results, or of fields."""
    if inspect.isclass(public):
        yield from typing.get_type_hints(public).values()
        return
    for name, annotation in public.__annotations__.items():
        # Which holds classes of SQLAlchemy and psycopg only, and is a text for the sake of the imports.
        if "CallersConnection" not in str(annotation):
            one = SimpleNamespace(__annotations__={name: annotation})
            yield from typing.get_type_hints(one, public.__globals__).values()


def types_in(hint: Any) -> Iterator[type]:
    """The classes in an annotation."""
    if inspect.isclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from types_in(part) if not isinstance(part, list) else (each for one in part for each in types_in(one))


@pytest.mark.parametrize("public", [*PUBLIC, *SUBJECTS], ids=lambda public: getattr(public, "__name__", "?"))
def test_each_type_that_a_signature_mentions_is_exported(public: object) -> None:
    missing = set()
    for function in functions_of(public):
        for kind in {kind for hint in hints_of(function) for kind in types_in(hint)}:
            is_ours = kind.__module__.split(".")[0] in ("mqdb", "mqdb_client")
            if is_ours and kind not in PUBLIC and getattr(errors, kind.__name__, None) is not kind:
                missing.add(f"{function.__qualname__} mentions {kind.__module__}.{kind.__qualname__}")

    assert sorted(missing) == []


def test_every_subject_is_looked_at() -> None:
    assert len(SUBJECTS) == 15


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_imports_nothing_of_mqdb_but_the_client(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")

    assert [name for name in imported if name.split(".")[0] == "mqdb"] == []


def test_there_is_an_example() -> None:
    assert EXAMPLES
