"""`do.py release` turns a clean and frozen commit into archives, hashes, a bill of materials and notes."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mqdb

ROOT = Path(__file__).parents[2]
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the last commit."""
    git(tmp_path, "clone", "--quiet", "--no-tags", str(ROOT), "clone")
    return tmp_path / "clone"


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not path.startswith(str(ROOT))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(clone), str(clone / "client"), *kept])}
    command = [sys.executable, "-m", "checks.release", *arguments]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


def make_releasable(clone: Path) -> None:
    """Commit everything that a release needs: a date in the changelog, a frozen schema, and no "not released yet"."""
    for path, before, after in (
        ("CHANGELOG.md", r"(?m)^(## [0-9.]+), not released yet$", r"\1, 2026-12-31"),
        ("mqdb/store/migrations.py", r"(_UNRELEASED: .*) = .*", r"\1 = None"),
        *(("CHANGELOG.md", words, "") for words in ("until it is released",)),
        *(("SECURITY.md", words, "") for words in ("not released yet",)),
        *(("ARCHITECTURE.md", words, "") for words in ("Until the first release",)),
        ("migrations/versions/0100_schema.py", "Nothing has been released", ""),
    ):
        text = (clone / path).read_text("utf-8")
        (clone / path).write_text(re.sub(before, after, text), "utf-8")
    git(clone, *AUTHOR, "commit", "--quiet", "--all", "--allow-empty", "--message", "Make it releasable")


def test_a_dry_run_names_the_obstacles_and_makes_nothing(clone: Path) -> None:
    make_releasable(clone)
    (clone / "more.txt").write_text("")
    (clone / "CHANGELOG.md").write_text("# Changelog\n")

    done = release(clone, "--dry-run")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"A release of mqdb {mqdb.__version__} from commit " in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("obstacle")] == [
        "obstacle: the tree is not clean:  M CHANGELOG.md",
        "obstacle: the tree is not clean: ?? more.txt",
        f"obstacle: CHANGELOG.md has no section {mqdb.__version__}",
    ]
    assert not (clone / "dist").exists()


def test_a_commit_with_an_obstacle_is_refused(clone: Path) -> None:
    make_releasable(clone)
    git(clone, "tag", f"v{mqdb.__version__}")

    done = release(clone)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"release: there is a tag v{mqdb.__version__} already\n"


@pytest.mark.long
def test_a_release_of_a_clone_is_whole_and_the_same_each_time(clone: Path) -> None:
    make_releasable(clone)

    done = release(clone)
    again = release(clone, "--output", "build/again")

    assert (done.returncode, done.stderr) == (0, "")
    assert f'git tag -s v{mqdb.__version__} -m "mqdb {mqdb.__version__}" ' in done.stdout
    made = {path.name: path.read_bytes() for path in (clone / "dist").iterdir()}
    stem = f"mqdb-{mqdb.__version__}"
    assert set(made) == {
        *(f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", f"{stem}.cdx.json", f"{stem}-notes.md", "SHA256SUMS"),
    }
    sums = {name: total for total, name in map(str.split, made["SHA256SUMS"].decode().splitlines())}
    assert sums == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in made.items()
        if name != "SHA256SUMS" and not name.endswith("-notes.md")
    }
    assert again.returncode == 0
    assert {path.name: path.read_bytes() for path in (clone / "build/again").iterdir()} == made
    assert release(clone).stderr == "release: dist is not empty\n"
