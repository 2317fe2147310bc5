"""The Dockerfile has two stages, a user without rights, a health check, and labels with the version."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import mqdb

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"


class Instruction(NamedTuple):
    """An instruction with its continuation lines joined."""

    name: str
    arguments: str


def instructions() -> list[Instruction]:
    lines = [line for line in DOCKERFILE.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*re.split(r"\s+", line, maxsplit=1)) for line in joined.splitlines()]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def last(name: str) -> str:
    """The arguments of the only instruction of this name in the last stage."""
    [found] = [each.arguments for each in stages()[-1] if each.name == name]
    return found


def test_what_builds_stays_behind() -> None:
    build, final = stages()

    assert build[0].arguments.endswith(" AS build")
    assert build[0].arguments.removesuffix(" AS build") == final[0].arguments
    assert last("COPY").startswith("--from=build ")
    assert not any("pip install" in each.arguments for each in final)
    assert all("--no-cache-dir" in each.arguments for each in build if "pip install" in each.arguments)
    assert any("--require-hashes" in each.arguments for each in build)


def test_the_base_image_has_a_supported_python() -> None:
    versions = {found for each in instructions() for found in re.findall(r"python:(3\.\d+)", each.arguments)}
    supported = re.findall(r":: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text("utf-8"))

    assert len(versions) == 1
    assert versions <= set(supported)


def test_the_user_has_no_rights_and_is_that_of_kubernetes() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/mqdb.yaml").read_text("utf-8"))
    [pod] = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"]

    user = last("USER")
    assert user == str(pod["securityContext"]["runAsUser"]) != "0"
    assert f"--uid {user} " in last("RUN")


def test_the_health_is_asked_where_it_is_served() -> None:
    check = last("HEALTHCHECK")

    assert "os.environ['MQDB_HTTP']" in check
    assert "/healthz" in check
    assert re.search(r"MQDB_HTTP=127\.0\.0\.1:\d+", last("ENV"))
    program = re.search(r'"-c", "([^"]+)"', check)
    assert program is not None
    compile(program[1], "HEALTHCHECK", "exec")


def test_the_labels_have_the_version_that_the_build_is_given() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', last("LABEL")))

    assert labels["version"] == "${VERSION}"
    assert last("ARG").startswith("VERSION=")
    assert labels["licenses"] == "Apache-2.0"
    assert mqdb.__version__ not in DOCKERFILE.read_text("utf-8")


def test_each_source_of_the_wheel_reaches_the_image() -> None:
    rules = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}

    assert "*" in rules
    assert {"pyproject.toml", "requirements.lock", "README.md", "LICENSE"} <= kept
    assert {"mqdb", "client", "migrations", "alembic.ini", "pyspark_mqdb.py"} <= kept
    assert [name for name in kept if not (ROOT / name).exists()] == []


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: its package has programs for Linux on x86-64 only")

    done = subprocess.run([program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
