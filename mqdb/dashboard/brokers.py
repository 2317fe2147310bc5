"""The brokers of a dashboard: those of the settings, wherever they are now."""

import threading

from mqdb.broker_list import brokers_of
from mqdb.common.dsn import BrokerDsn
from mqdb.settings import Settings
from mqdb_client import Admin


class Brokers:
    """The way of the dashboard to its brokers. Any thread may use it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.are_read_only = settings.web_read_only
        self._guard = threading.Lock()
        self._found: tuple[BrokerDsn, ...] = ()
        self._admin: Admin | None = None

    def admin(self) -> Admin:
        """Administers the brokers. An embedded one may have come back on another port.

        Raises BrokerUnavailable for an embedded broker that does not run.
        """
        found = brokers_of(self._settings)
        with self._guard:
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
