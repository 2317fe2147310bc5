"""Notifications to systemd, on a socket like that of systemd."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqdb.process.systemd import SystemdSupervisor


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """The listening end of the socket; reads from it do not wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield end


def test_it_is_told_what_happens(systemd: socket.socket) -> None:
    supervisor = SystemdSupervisor()

    supervisor.tell_ready()
    supervisor.tell_alive()
    supervisor.tell_stopping()

    assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_children_do_not_speak_for_the_service(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    SystemdSupervisor()

    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


@pytest.mark.parametrize(
    ("limit", "pid", "awaits"),
    [("0", None, True), ("0", "mine", True), ("0", "1", False), ("3600000000", None, False), ("", None, False)],
)
def test_a_sign_is_due_after_half_of_the_time(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, limit: str, pid: str | None, awaits: bool
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", limit)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "mine" else pid)

    assert SystemdSupervisor().awaits_a_sign() is awaits


def test_a_name_without_a_file_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0mqdb-test-{os.getpid()}")
        end.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@mqdb-test-{os.getpid()}")

        SystemdSupervisor().tell_ready()

        assert end.recv(100) == b"READY=1"


def test_without_systemd_all_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "0")
    supervisor = SystemdSupervisor()

    supervisor.tell_ready()

    assert not supervisor.awaits_a_sign()


def test_who_does_not_listen_ends_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))

    SystemdSupervisor().tell_alive()

    [record] = caplog.records
    assert record.getMessage().startswith("could not send WATCHDOG=1 to systemd: ")
