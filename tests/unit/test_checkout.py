"""What a fresh clone needs before anything is installed."""

import ast
import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def normal_name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def locked_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_lock_pins_versions_and_names_no_address() -> None:
    for line in locked_lines():
        assert re.fullmatch(r"[a-z0-9-]+==[^ /:@]+( ; [^/:@]+)?", line), line


def test_the_lock_covers_every_requirement_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]

    assert {normal_name(one) for one in asked} <= {normal_name(line) for line in locked_lines()}


def test_a_python_too_old_for_mqdb_can_read_do_py_and_say_so() -> None:
    ast.parse((ROOT / "do.py").read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_ci_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
