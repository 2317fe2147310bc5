"""Replaces its own process by a PostgreSQL server, which stops when its owner ends. Run as a script, never imported.

    python -I -S launcher.py OWNER_PID WATCH_FD UID GID PROGRAM [ARGUMENT...]

An OWNER_PID of 0 means that the server outlives its owner.

A separate script instead of `preexec_fn`, which runs Python code between fork and exec: this can deadlock if there are
other threads, and `mqdb serve` takes a directory over while its services run. The script switches to the account
itself, because the account may not be able to execute a Python installation in /root.

Linux notifies a process when the thread that started it ends (PR_SET_PDEATHSIG). On other systems, a watcher holds the
read end of a pipe whose write end only the owner has: a byte means that the server was stopped, and end of file that
the owner is dead.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(owner_pid: int, watch_fd: int, uid: int, gid: int, command: list[str]) -> None:
    # Python's own handler only records the signal; the death of the owner at this moment would go unnoticed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if watch_fd >= 0:
        _start_watcher(watch_fd, os.getpid())
        os.close(watch_fd)
    elif owner_pid:
        _end_with_owner(owner_pid)
    os.execv(command[0], command)


def _end_with_owner(owner_pid: int) -> None:
    """Request the parent-death signal; called after setuid, which clears the request, while exec keeps it."""
    libc = ctypes.CDLL(None, use_errno=True)
    # SIGINT requests PostgreSQL's fast shutdown. After SIGTERM, it would wait for its clients to disconnect.
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != owner_pid:
        sys.exit("the owner ended while it was starting PostgreSQL")


def _start_watcher(watch_fd: int, server_pid: int) -> None:
    """Start the watcher with two forks, so that the server has no child that it did not start."""
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return
    if os.fork() == 0:
        os.setsid()
        if os.read(watch_fd, 1) == b"":
            os.kill(server_pid, signal.SIGINT)
    os._exit(0)


if __name__ == "__main__":
    owner_pid, watch_fd, uid, gid = map(int, sys.argv[1:5])
    main(owner_pid, watch_fd, uid, gid, sys.argv[5:])
