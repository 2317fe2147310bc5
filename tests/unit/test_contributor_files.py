"""Every command, path and version in the files for contributors exists."""

import json
import re
import tomllib
from pathlib import Path

import yaml

from checks import prose

ROOT = Path(__file__).parents[2]


def test_contributing_names_paths_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:mqdb|tests|docs|checks|migrations)/[\w/.-]+|\.ci/run|do\.py)`", text)
    commands = re.findall(r"(?:test |run )(tests/\S+|\.ci/\S+)", text)
    assert len(paths) > 20
    assert [path for path in (*paths, *commands) if not (ROOT / path).exists()] == []


def test_the_workflow_runs_each_python_and_postgresql_that_is_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [found[1] for line in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
    assert workflow["jobs"]["python"]["strategy"]["matrix"]["python"] == pythons
    assert workflow["jobs"]["postgresql"]["strategy"]["matrix"]["postgresql"] == [15, 16, 17, 18]
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["all"]["steps"]]


def test_pre_commit_runs_the_checks_of_do_py() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in hooks]
    assert entries == ["ruff check", "ruff format", "mypy", "lint-imports --no-logo", f"python -m {prose.__name__}"]


def test_the_other_files_can_be_read() -> None:
    json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    for template in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(template.read_text(encoding="utf-8"))
