"""Turns itself into a PostgreSQL server that ends when its owner ends. Run as a script, never imported.

    python -I -S launcher.py OWNER_PID WATCH_FD UID GID PROGRAM [ARGUMENT...]

An OWNER_PID of 0 is for a server that outlives its owner.

A script of its own rather than `preexec_fn`: that runs Python between fork and exec, which can deadlock as soon as
there are other threads, and `mqdb serve` takes a directory over while its services run. It drops to the account
itself, because the account may not be able to execute the Python of a root that lives in /root.

Linux tells a process when the thread that started it ends (PR_SET_PDEATHSIG). Elsewhere a watcher holds the read
end of a pipe whose write end only the owner has: a byte means that the server was stopped, end of file that the
owner is dead.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(owner_pid: int, watch_fd: int, uid: int, gid: int, command: list[str]) -> None:
    # Python's own handler only takes a note; with that, an owner that dies right now would go unnoticed.
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
    """After setuid, which forgets the wish; exec keeps it."""
    libc = ctypes.CDLL(None, use_errno=True)
    # SIGINT is PostgreSQL's fast shutdown. On SIGTERM it would wait for its clients to leave.
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != owner_pid:
        sys.exit("the owner ended while it started PostgreSQL")


def _start_watcher(watch_fd: int, server_pid: int) -> None:
    """Forked twice, so that the server does not find a child that it never started."""
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
