"""The account that runs PostgreSQL. PostgreSQL refuses to run as root, so root starts it under another account.

The account must already exist: nothing here adds users, and directories that mqdb did not create keep their owner and
mode. A file that the account cannot access is reported, or copied to a place that it can access.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqdb.errors import DataDirectoryUnusable, SettingInvalid

CANDIDATES = ("mqdb", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine, without its supplementary groups."""

    name: str
    uid: int
    gid: int


def service_account(environ: Mapping[str, str] = os.environ) -> Account | None:
    """The account under which root runs PostgreSQL; None for other users, who run it themselves."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    wished = environ.get("MQDB_PG_USER", "").strip()
    if not wished:
        accounts = (_find_account(name) for name in CANDIDATES)
        account = next((account for account in accounts if account is not None), None)
        if account is None:
            reason = f"PostgreSQL refuses to run as root, and no user is named {' or '.join(CANDIDATES)}; name a user"
            raise SettingInvalid("pg_user", None, "MQDB_PG_USER", reason)
        return account
    account = _find_account(wished)
    if account is None:
        raise SettingInvalid("pg_user", wished, "MQDB_PG_USER", "this machine has no such user")
    if account.uid == 0:
        raise SettingInvalid("pg_user", wished, "MQDB_PG_USER", "PostgreSQL refuses to run as root; name another user")
    return account


def owner_of(directory: Path, chosen: Account | None) -> Account | None:
    """The account for an existing data directory.

    PostgreSQL serves a data directory only to its owner, whatever account was `chosen`.
    """
    if chosen is None:
        return None
    uid = directory.stat().st_uid
    if uid == 0:
        raise DataDirectoryUnusable(directory, "belongs to root, for whom PostgreSQL refuses to run")
    account = chosen if uid == chosen.uid else _find_account(uid)
    if account is None:
        raise DataDirectoryUnusable(directory, f"belongs to user number {uid}, which does not exist here")
    return account


def _find_account(who: str | int) -> Account | None:
    import pwd  # imported here: the module is missing on Windows, where this module must still be importable

    try:
        entry = pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def run_as(account: Account | None, command: Sequence[str | Path], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end. Raises OSError if the account cannot execute it."""
    return subprocess.run(
        command,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        # If the account cannot enter the working directory, initdb complains about it.
        cwd=cwd,
        env=postgres_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def postgres_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for PostgreSQL's programs: without PGDATA and PGPORT, and with English messages.

    The supervisor parses a few of these messages.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


def can_enter(directory: Path, account: Account | None) -> bool:
    """Whether the account can enter a directory, tested by trying, because access lists and mounts matter, too."""
    answer = run_as(account, ["/bin/sh", "-c", 'cd "$1" 2>/dev/null', "sh", directory], cwd=Path("/"))
    return answer.returncode == 0


def closed_directory(path: Path, account: Account) -> Path | None:
    """The topmost directory on the path to `path` whose mode keeps the account out, for an error message."""
    for directory in [*reversed(path.parents), path]:
        status = directory.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == account.uid:
            is_open = bool(mode & stat.S_IXUSR)
        elif status.st_gid == account.gid:
            is_open = bool(mode & stat.S_IXGRP)
        else:
            is_open = bool(mode & stat.S_IXOTH)
        if not is_open:
            return directory
    return None
