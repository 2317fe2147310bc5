"""Notifications to systemd, if it started this process: clients can connect, all loops are running, the process ends.

Source: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html. Without NOTIFY_SOCKET, nothing is sent.
"""

import logging
import os
import socket
import time
from typing import Final

logger = logging.getLogger(__name__)

_READY: Final = b"READY=1"
_ALIVE: Final = b"WATCHDOG=1"
_STOPPING: Final = b"STOPPING=1"


class SystemdSupervisor:
    """The systemd that supervises this process. A process that sends no sign of life for WatchdogSec is restarted."""

    def __init__(self) -> None:
        """Remove the variables from the environment, because an embedded PostgreSQL would use them as well."""
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        limit, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        is_meant = bool(self._address) and pid in ("", str(os.getpid()))
        self._interval = int(limit) / 2_000_000 if is_meant and limit.isdecimal() else None
        self._told_at = time.monotonic()

    def awaits_a_sign(self) -> bool:
        """Whether half of the time that systemd waits before it restarts the process has passed."""
        return self._interval is not None and time.monotonic() - self._told_at >= self._interval

    def tell_ready(self) -> None:
        """Notify systemd that clients can connect."""
        self._tell(_READY)

    def tell_alive(self) -> None:
        """Notify systemd that all loops are running."""
        self._told_at = time.monotonic()
        self._tell(_ALIVE)

    def tell_stopping(self) -> None:
        """Notify systemd that the process ends on purpose."""
        self._tell(_STOPPING)

    def _tell(self, state: bytes) -> None:
        if not self._address:
            return
        # An address that starts with @ has no file.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(state, address)
        except OSError as error:  # no reason to end: systemd decides when the sign is missing
            fields = {"state": state.decode(), "error": str(error)}
            logger.warning("could not send %(state)s to systemd: %(error)s", fields, extra=fields)
