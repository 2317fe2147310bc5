"""The home of an embedded PostgreSQL: its files, its owner, and how other processes find the server.

    <home>/data/               the cluster, mode 0700, owned by the account that runs PostgreSQL
    <home>/runtime/            a copy of the programs, only where root needs one
    <home>/password            of the clients' database user
    <home>/superuser-password  of the supervisor's database user
    <home>/postgres.log        what the server printed
    <home>/mqdb.lock           held by the process that owns the server; the kernel frees it when that process ends
    <home>/starting.lock       held by a broker until clients may come
    <home>/run.json            how to reach the server of the latest run

All files have mode 0600. The home of root has mode 0711, so that PostgreSQL's account can pass through it, and a file
that can be read can be locked.

run.json outlives the server: the next owner reuses the port in it, so that the address known to clients stays valid. A
reader of run.json has to check with the server itself whether it is running, as `attach` does.
"""

import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from mqdb.embedded.account import Account, can_enter, closed_directory, service_account
from mqdb.embedded.leftovers import end_server
from mqdb.errors import DataDirectoryBusy, DataDirectoryUnusable

_LOG_BYTES_KEPT = 10_000_000


@dataclass(frozen=True, slots=True)
class RunningPostgres:
    """The address of a server. `pid` is the process that owns it, and `postgres_pid` the postmaster."""

    dsn: str
    port: int
    pid: int
    postgres_pid: int


class Home:
    """The paths of one home directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.data = self.path / "data"
        self.runtime = self.path / "runtime"
        self.password_file = self.path / "password"
        self.superuser_password_file = self.path / "superuser-password"
        self.log_file = self.path / "postgres.log"
        self.lock_file = self.path / "mqdb.lock"
        self.starting_file = self.path / "starting.lock"
        self.run_file = self.path / "run.json"


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Convert errors of the file system to DataDirectoryUnusable, which names the directory and the remedy."""
    try:
        yield
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename not in (None, str(path)) else ""
        raise DataDirectoryUnusable(path, f"{exc.strerror or exc}{where}") from exc


def create(home: Home, account: Account | None) -> None:
    """Create the home, and missing directories above it. Existing directories keep their owner and mode.

    Raises DataDirectoryUnusable for a home in which every user may write, and so replace our files.
    """
    with refusing(home.path):
        missing = [path for path in [home.path, *home.path.parents] if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            # Not left to the umask: PostgreSQL's account, which differs for root, has to pass through.
            path.chmod(0o711 if account else 0o700)
        if not home.path.is_dir():
            raise NotADirectoryError(20, "is not a directory")
    mode = stat.S_IMODE(home.path.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise DataDirectoryUnusable(home.path, f"every user of this machine may write to it (mode {mode:04o})")


def check_reachable(home: Home, account: Account | None) -> None:
    """Raise DataDirectoryUnusable if the account cannot enter the home."""
    if account is None or can_enter(home.path, account):
        return
    closed = closed_directory(home.path, account) or home.path
    mode = closed.stat().st_mode & 0o7777
    raise DataDirectoryUnusable(
        home.path, f"user {account.name!r}, under which root runs PostgreSQL, may not enter {closed} (mode {mode:04o})"
    )


def data_version(home: Home) -> int | None:
    """The major version of the cluster; None if there is no cluster yet."""
    with refusing(home.data):
        try:
            return int((home.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            if home.data.is_dir() and any(home.data.iterdir()):
                raise DataDirectoryUnusable(home.data, "contains files but no PG_VERSION") from None
            return None
        except ValueError:
            raise DataDirectoryUnusable(home.data, "PG_VERSION does not contain a version number") from None


def lock(home: Home) -> BaseFileLock:
    """Acquire the lock, or raise DataDirectoryBusy immediately."""
    # Not thread-local: a directory may be taken over in one thread and released in another.
    directory_lock = FileLock(home.lock_file, mode=0o600, thread_local=False)
    with refusing(home.path):
        try:
            directory_lock.acquire(blocking=False)
        except Timeout:
            raise DataDirectoryBusy(home.path) from None
    return directory_lock


def password(home: Home, *, is_new: bool) -> str:
    """The password of the clients' database user, generated once when the cluster is created."""
    return _password(home, home.password_file, is_new=is_new)


def superuser_password(home: Home, *, is_new: bool) -> str:
    """The password of the superuser, which no client needs, generated together with the other one."""
    return _password(home, home.superuser_password_file, is_new=is_new)


def _password(home: Home, file: Path, *, is_new: bool) -> str:
    with refusing(home.path):
        if is_new:
            _write_private(file, secrets.token_urlsafe(24))
        return file.read_text()


def write_run_file(home: Home, running: RunningPostgres) -> None:
    with refusing(home.path):
        _write_private(home.run_file, json.dumps(asdict(running), indent=2) + "\n")


def read_run_file(home: Home) -> RunningPostgres | None:
    """The contents of the latest owner's run file; None if it is missing or cannot be parsed."""
    with refusing(home.path):
        try:
            return RunningPostgres(**json.loads(home.run_file.read_text()))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return None


def _write_private(path: Path, text: str) -> None:
    """Write a file atomically, without ever making it readable for others."""
    handle, partial = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(text)
        os.replace(partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def open_log(home: Home) -> int:
    """A file descriptor for appending to the server's log; a long log is renamed first."""
    with refusing(home.path):
        with suppress(FileNotFoundError):
            if home.log_file.stat().st_size > _LOG_BYTES_KEPT:
                home.log_file.replace(home.log_file.with_suffix(".log.1"))
        return os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


@contextmanager
def temporary_home(environ: Mapping[str, str] = os.environ, *, parent: Path | None = None) -> Iterator[Path]:
    """A temporary home in `parent`, or in the system's directory for temporary files; for demos and tests.

    The home is removed afterwards; a server that a killed process left running in it is stopped first.
    """
    account = service_account(environ)
    path = Path(tempfile.mkdtemp(prefix="mqdb-", dir=parent or _temporary_parent(account))).resolve()
    try:
        if account is not None:
            path.chmod(0o711)
        yield path
    finally:
        end_server(Home(path).data)
        shutil.rmtree(path)


def _temporary_parent(account: Account | None) -> Path:
    """TMPDIR may be in a private directory, such as /root/tmp, that PostgreSQL's account cannot enter."""
    wished = Path(tempfile.gettempdir())
    places = [wished, Path("/tmp"), Path("/var/tmp"), Path("/var/lib")]
    return next((place for place in places if place.is_dir() and can_enter(place, account)), wished)
