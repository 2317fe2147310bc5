"""The release: archives of this version, their hashes, their bill of materials, and notes. Nothing is published.

    python3 do.py release              makes all of it in dist/, and prints the commands that publish it
    python3 do.py release --dry-run    prints the steps, and the obstacles to a release of this commit

The wheel and the sdist are built twice from an export of the commit, and both builds must be equal byte by byte.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from checks.archives import names_in_sdist, names_in_wheel, problems_of

ROOT: Final = Path(__file__).resolve().parent.parent
_VERSION_FILE: Final = "mqdb/__init__.py"
_SUMS: Final = "SHA256SUMS"

#: The ends of the names of files in which a second statement of the version would have an effect.
_MAY_STATE_IT: Final = (".py", ".toml", ".yaml", ".yml", ".cfg", "Dockerfile")

#: Words that are true only before the first release, and the pages that have them.
_EARLY: Final = ("not released yet", "until it is released", "Until the first release", "Nothing has been released")
_PAGES: Final = ("CHANGELOG.md", "SECURITY.md", "ARCHITECTURE.md", "migrations/versions/0100_schema.py")

_STEPS: Final = """\
A release of mqdb {version} from commit {commit}:
  1. export the commit, and build sdist and wheel with SOURCE_DATE_EPOCH={epoch}; do it again elsewhere, and compare
  2. compare the files in both archives with those in git
  3. write into {output}: both archives, mqdb-{version}.cdx.json, mqdb-{version}-notes.md, SHA256SUMS
  4. print the commands for the tag and for the upload
"""

_COMMANDS: Final = """\
Look at {output}, then publish it:
  git tag -s v{version} -m "mqdb {version}" {commit}
  git push origin v{version}
  python3 -m twine upload {archives}
  sha256sum --check SHA256SUMS    # in {output}; attach all files to the release of the tag
"""


class Refused(Exception):
    """The commit cannot be released. The arguments are the reasons."""


class Commit(NamedTuple):
    """The commit to release."""

    name: str
    epoch: int
    """The Unix time of the commit, which is the time of all files in the archives."""
    files: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = _parser().parse_args(arguments)
    version, commit = version_of(ROOT), _commit()
    obstacles = _obstacles(version, commit)
    if given.dry_run:
        print(_STEPS.format(version=version, commit=commit.name, epoch=commit.epoch, output=given.output))
        print("\n".join(f"obstacle: {each}" for each in obstacles) or "There is no obstacle.")
        return 0
    try:
        if obstacles:
            raise Refused(*obstacles)
        archives = _release(version, commit, given.output)
    except Refused as refused:
        for reason in refused.args:
            print(f"release: {reason}", file=sys.stderr)
        return 1
    names = " ".join(str(given.output / archive.name) for archive in archives)
    print(_COMMANDS.format(version=version, commit=commit.name, output=given.output, archives=names), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="do.py release",
        description="Build the archives of this version and their bill of materials. It publishes nothing: the "
        "commands for the tag and for the upload are printed.",
        epilog="example: python3 do.py release --dry-run",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the steps and the obstacles, and build nothing")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="the directory for the files; it must be empty or new (default: dist)",
    )
    return parser


# -- whether the commit may be released ---------------------------------------------------------


def version_of(root: Path) -> str:
    """The version of the project, which only `mqdb/__init__.py` states."""
    found = re.findall(r'^__version__ = "(\d+\.\d+\.\d+\w*)"$', (root / _VERSION_FILE).read_text("utf-8"), re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(f"release: {_VERSION_FILE} states {len(found)} versions instead of one")
    return str(found[0])


def also_stated(root: Path, files: Sequence[str], version: str) -> list[str]:
    """Other files that state the version, as `version = ...`, `version: ...` or `VERSION=...`."""
    statement = re.compile(rf"version(__)?\W{{1,4}}{re.escape(version)}(?![.\w])", re.IGNORECASE)
    texts = (path for path in files if path.endswith(_MAY_STATE_IT) and path != _VERSION_FILE)
    return [path for path in texts if statement.search((root / path).read_text("utf-8", errors="replace"))]


def notes_of(changelog: str, version: str) -> str | None:
    """The section of a version in the changelog without its heading; None if the section is missing."""
    section = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return section[1].strip() + "\n" if section else None


def date_of(changelog: str, version: str) -> str | None:
    """The date in the heading of a version in the form 2026-12-31; None if the date is missing."""
    heading = re.search(rf"^## {re.escape(version)}, (\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE)
    return heading[1] if heading else None


def _obstacles(version: str, commit: Commit) -> list[str]:
    from mqdb.store.migrations import head

    found = [f"the tree is not clean: {line}" for line in _git("status", "--porcelain").splitlines()]
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if notes_of(changelog, version) is None:
        found.append(f"CHANGELOG.md has no section {version}")
    elif date_of(changelog, version) is None:
        found.append(f"the heading in CHANGELOG.md is not `## {version}, YYYY-MM-DD`")
    for page in _PAGES:
        found += [f'{page} still says "{words}"' for words in _EARLY if words in (ROOT / page).read_text("utf-8")]
    if "." in head():
        found.append(f"the schema {head()} is not frozen: set _UNRELEASED in mqdb/store/migrations.py to None")
    found += [f"{path} states the version, too" for path in also_stated(ROOT, commit.files, version)]
    if _git("tag", "--list", f"v{version}"):
        found.append(f"there is a tag v{version} already")
    return found


# -- what is made -------------------------------------------------------------------------------


def _release(version: str, commit: Commit, output: Path) -> list[Path]:
    """Fill the output directory; returns the archives. Raises Refused if the release has problems."""
    from checks.sbom import bill_of_materials

    if output.exists() and any(output.iterdir()):
        raise Refused(f"{output} is not empty")
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        archives = [_build(Path(folder) / name, commit) for folder, name in ((first, "one"), (second, "another"))]
        _check(archives, version, commit)
        output.mkdir(parents=True, exist_ok=True)
        made = [Path(shutil.copy(archive, output)) for archive in archives[0]]
    wheel = next(archive for archive in made if archive.suffix == ".whl")
    bill = output / f"mqdb-{version}.cdx.json"
    bill.write_text(bill_of_materials(ROOT, version, datetime.fromtimestamp(commit.epoch, UTC), sha256(wheel)), "utf-8")
    notes = output / f"mqdb-{version}-notes.md"
    notes.write_text(notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version) or "", "utf-8")
    sums = [f"{sha256(path)}  {path.name}\n" for path in sorted([*made, bill])]
    (output / _SUMS).write_text("".join(sums), "utf-8")
    return made


def _build(folder: Path, commit: Commit) -> list[Path]:
    """Build the sdist from an export of the commit, and the wheel from the sdist; returns both."""
    source, built = folder / "source", folder / "built"
    source.mkdir(parents=True)
    export = subprocess.run(["git", "archive", commit.name], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "--extract", f"--directory={source}"], input=export.stdout, check=True)
    # A checkout on the path would be imported instead of the exported code.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["SOURCE_DATE_EPOCH"] = str(commit.epoch)
    command = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={built}", str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(*(done.stdout + done.stderr).splitlines()[-20:], "the build failed; its last lines are above")
    return sorted(built.iterdir())


def _check(archives: Sequence[Sequence[Path]], version: str, commit: Commit) -> None:
    """Raise Refused unless both builds are equal and have exactly the expected files."""
    first, second = ({path.name: sha256(path) for path in build} for build in archives)
    problems = [f"two builds of {name} differ" for name in first if first[name] != second.get(name)]
    wanted = {
        f"mqdb-{version}-py3-none-any.whl": names_in_wheel(commit.files, version),
        f"mqdb-{version}.tar.gz": names_in_sdist(commit.files, version),
    }
    if set(first) != set(wanted):
        problems.append(f"the build made {', '.join(first)} instead of {', '.join(wanted)}")
    problems += [each for path in archives[0] if path.name in wanted for each in problems_of(path, wanted[path.name])]
    if problems:
        raise Refused(*problems)


def sha256(path: Path) -> str:
    """The SHA-256 hash of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _commit() -> Commit:
    name, epoch = _git("log", "-1", "--format=%H %ct").split()
    return Commit(name, int(epoch), tuple(_git("ls-files").splitlines()))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main())
