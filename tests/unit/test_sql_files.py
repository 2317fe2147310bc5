"""The schema's SQL files are grouped by subject, and callers of a function name its file."""

import re
from pathlib import Path

import pytest

import mqdb

PACKAGE = Path(mqdb.__file__).parent
SQL = PACKAGE / "sql"
FILES = {
    name: path.relative_to(PACKAGE.parent).as_posix()
    for path in sorted(SQL.rglob("*.sql"))
    for name in re.findall(r"^CREATE FUNCTION mqdb\.(\w+)", path.read_text(), re.MULTILINE)
}

#: Small expressions that many statements have in them.
EXPRESSIONS = {
    "all_properties", "check_right", "copied_code", "deleted_prefix", "dlq_prefix", "entries", "full_group",
    "full_topic", "history", "is_allowed", "is_covered", "is_named", "is_owner", "now", "own_name", "place",
    "property_number", "retry_prefix", "sink_principal", "unique_id_text", "with_namespace", "without_namespace",
}  # fmt: skip

MODULES = sorted(path for folder in ("store", "broker") for path in (PACKAGE / folder).rglob("*.py"))
CALL = re.compile(r"\bmqdb\.(\w+)\(")


def calls(text: str) -> set[str]:
    return (set(CALL.findall(text)) & FILES.keys()) - EXPRESSIONS


def test_there_are_no_loose_files_and_each_folder_is_one_of_the_store() -> None:
    assert list(SQL.glob("*.sql")) == []
    subjects = {path.name for path in SQL.iterdir() if path.is_dir()}
    rooms = {path.stem for path in (PACKAGE / "store").iterdir()}
    assert subjects <= rooms, subjects - rooms


def test_each_name_of_an_expression_is_one() -> None:
    assert FILES.keys() >= EXPRESSIONS


@pytest.mark.parametrize("module", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_a_module_names_the_files_of_the_functions_that_it_calls(module: Path) -> None:
    text = module.read_text()
    unnamed = {name: FILES[name] for name in calls(text) if FILES[name] not in text}
    assert not unnamed
