"""The brokers of a dashboard: those in the settings, at their current addresses."""

import threading
import time
from datetime import timedelta
from typing import Final

from mqdb.common.dsn import BrokerDsn
from mqdb.dashboard.live.pulse import Pulse
from mqdb.settings import Settings
from mqdb.settings.broker_list import brokers_of
from mqdb.web.live_figures import LiveFigures
from mqdb_client import Admin, BrokerAdmin, DoctorThresholds

#: Finding an embedded broker takes 3 ms, as long as the rest of a small page.
_KNOWN_SECONDS: Final = 2.0


class Brokers:
    """The dashboard's access to its brokers. Any thread may use the object."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.are_read_only = settings.web_read_only
        self.thresholds: Final = DoctorThresholds(reserved_hours=settings.file_reserved_time / timedelta(hours=1))
        #: Filled by a broker process that serves the dashboard, while it leads; empty elsewhere.
        self.figures: Final = LiveFigures()
        self.pulse: Final = Pulse(self.figures)
        self._guard = threading.Lock()
        self._found: tuple[BrokerDsn, ...] = ()
        self._known_until = 0.0
        self._admin: Admin | None = None

    def find(self, name: str) -> BrokerAdmin | None:
        """The broker with this name, or None. Raises BrokerUnavailable as `admin` does."""
        return next((each for each in self.admin().brokers if each.name == name), None)

    def admin(self) -> Admin:
        """The `Admin` of the brokers, created again if an embedded broker has restarted on another port.

        Raises BrokerUnavailable if an embedded broker is not running.
        """
        with self._guard:
            now = time.monotonic()
            if self._admin is not None and now < self._known_until:
                return self._admin
            found = brokers_of(self._settings)
            self._known_until = now + _KNOWN_SECONDS
            if self._admin is None or found != self._found:
                if self._admin is not None:
                    self._admin.close()
                self._admin, self._found = Admin(settings=self._settings, read_only=self.are_read_only), found
            return self._admin

    def close(self) -> None:
        """Disconnect."""
        with self._guard:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
