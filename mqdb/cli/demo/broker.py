"""The broker of the demo, in its own process like any broker.

The process reports its DSN as soon as clients can connect. The module is run as a program; see `mqdb.cli.demo.child`.
"""

import logging
from typing import Any

from mqdb.cli.demo.child import Child, ChildFailed, report, run_child, until_input_ends, wait_for
from mqdb.cli.logs import configure
from mqdb.settings import Settings

#: An existing data directory may need recovery first.
_START_SECONDS = 120.0
_IDLE_SECONDS = 3600.0
_NAME = "the broker"


class BrokerProcess(Child):
    """The demo's handle of a broker process with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._dsn: str | None = None
        values = {line.name: line.value for line in settings.lines() if line.value}
        # As shown, DSNs have no password.
        values |= {name: dsn for name in ("dsn", "pool_dsn") if (dsn := getattr(settings, name)) is not None}
        super().__init__(_NAME, __name__, [values], self._take)

    def wait_until_started(self) -> str:
        """Wait for the broker, and return the DSN of its database, with the password.

        Raises ChildFailed if the process ends, or does not start in time.
        """
        if not wait_for(lambda: self._dsn is not None, _START_SECONDS, meanwhile=self.check):
            raise ChildFailed(_NAME, f"no sign of life within {_START_SECONDS:g} s")
        assert self._dsn is not None
        return self._dsn

    def _take(self, what: dict[str, Any]) -> None:
        self._dsn = what.get("dsn", self._dsn)


def _serve(order: list[Any]) -> None:
    from mqdb.server import Server

    configure(logging.WARNING)
    # Not load_settings: the environment has already been read, and settings that the demo leaves out must stay unset.
    with Server(Settings(**order[0])) as server:
        report(dsn=server.dsn)
        for _ in until_input_ends(_IDLE_SECONDS):
            pass


if __name__ == "__main__":
    run_child(_serve)
