"""A fresh clone meets these conditions before anything is installed."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

import do

ROOT = Path(__file__).resolve().parents[2]


def normal_name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


LOCKS = ["requirements.lock", "requirements-contrib.lock", "requirements-test.lock"]


def pins(name: str) -> dict[str, str]:
    """The pinned lines of a lock file, by package name."""
    text = (ROOT / name).read_text(encoding="utf-8").replace(" \\\n", "\n")
    lines = [line for line in text.splitlines() if not line.startswith(("#", "    --hash="))]
    return {normal_name(line): line for line in lines}


def requirements() -> dict[str, list[str]]:
    """The requirements of the project by extra; "" lists those that are always needed."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = configuration["project"]
    always = [*project["dependencies"], *configuration["build-system"]["requires"]]
    return {"": always, **project["optional-dependencies"]}


def test_the_locks_are_all_there_and_do_py_knows_them() -> None:
    assert sorted(path.name for path in ROOT.glob("*.lock")) == sorted(LOCKS) == sorted(do.LOCKS)
    assert requirements()[""][-1] == do.BUILD_BACKEND


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_versions_and_hashes_and_names_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    pinned, hashed = r"[a-z0-9-]+==[^ /:@]+( ; [^/:@\\]+)?", r"( \\\n    --hash=sha256:[0-9a-f]{64})+"

    assert re.fullmatch(rf"(#[^/:@]*\n)*({pinned}{hashed}\n)+", text)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_covers_what_its_extras_require(name: str) -> None:
    wanted = [one for extra in ("", *do.LOCKS[name]) for one in requirements()[extra]]

    assert {normal_name(one) for one in wanted} <= pins(name).keys()


def test_every_extra_is_locked() -> None:
    assert {extra for extras in do.LOCKS.values() for extra in extras} == requirements().keys() - {""}


def test_the_locks_agree() -> None:
    version = re.compile(r"==[^ ]+")
    versions = [{name: version.findall(line) for name, line in pins(each).items()} for each in LOCKS]

    for other in versions[1:]:
        assert {name: other.get(name) for name in versions[0]} == versions[0]


def test_a_python_too_old_for_mqdb_can_read_do_py_and_say_so() -> None:
    ast.parse((ROOT / "do.py").read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_ci_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
