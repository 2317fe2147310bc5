"""Silence watch: makes services leave a server that does not answer.

If a round has had no answer for 15 s, a new connection checks whether the round's backend is working on a statement,
which may take long, or wait for a lock or a standby. If the backend is not working, or the server does not answer, the
round is cut off.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection

from mqdb.service.run import Run
from mqdb.service.service import Service
from mqdb.store import silence
from mqdb.store.silence import find_stranded

_LOOK: Final = timedelta(seconds=1)


class SilenceWatch:
    """Watches services in a job of the scheduler, which ends with the scheduler."""

    def __init__(
        self,
        services: Callable[[], Sequence[Service[Any]]],
        connect: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        """`connect` makes a new connection in the same way as the services."""
        self._services = services
        self._connect = connect
        self._asking: threading.Thread | None = None

    def start(self, scheduler: BackgroundScheduler) -> None:
        """Start to check once a second."""
        scheduler.add_job(self._look, "interval", seconds=_LOOK.total_seconds())

    def _look(self) -> None:
        if self._asking is not None and self._asking.is_alive():
            return
        if late := {run: run.waits_since for service in self._services() if (run := service.waiting) is not None}:
            self._asking = threading.Thread(target=self._ask, args=(late,), name="mqdb-asks-server", daemon=True)
            self._asking.start()

    def _ask(self, late: dict[Run, float]) -> None:
        stranded = find_stranded(self._connect, late)
        reason = f"no answer for {silence.PATIENCE_SECONDS:g} s"
        if stranded is None:
            for service in self._services():
                service.cut(reason)
        for run in stranded or ():
            run.cut(reason)
