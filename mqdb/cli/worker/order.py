"""The protocol between a worker process and its supervisor: lines of JSON over a socket pair.

If the other end of its socket is closed, a process no longer has a supervisor, and stops. The order may contain a
password, so it is not passed as an argument, which every user of the machine could read.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

#: Exit code of a process that cannot start until the application or the settings are corrected, or an extra is
#: installed: EX_CONFIG.
UNUSABLE: Final = 78

#: Messages of a process: it consumes; it has announced its listeners and removed crons; its event loop is running.
READY: Final = "ready"
ANNOUNCED: Final = "announced"
ALIVE: Final = "alive"

#: Interval of the last of these messages.
ALIVE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Order:
    """The instructions for a worker process. `home`, `config` and `dsn` are options of the command line."""

    target: str
    groups: tuple[str, ...] = ()
    dsn: str | None = None
    home: str | None = None
    config: str | None = None
    log_level: int = 30
    log_format: str = "text"
    is_once: bool = False
    """Exit when all messages are consumed."""
    prunes: bool = False
    """Remove crons that are no longer in the code."""
    announces: bool = True
    """Print a line for each listener and cron."""
    is_measured: bool = False
    """Keep metrics for the supervisor, and report that the event loop is running."""

    def line(self) -> bytes:
        """The order as a line for the socket."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: str | bytes) -> "Order":
        """Parse a line made by `line`."""
        values = json.loads(line)
        return cls(**values | {"groups": tuple(values["groups"])})


#: Variable with the directory of the processes' metrics; the name comes from prometheus-client.
METRICS_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


def is_end_of_work(code: int, number: int) -> bool:
    """Whether an exit code means that a process ended well, or that the signal came before its handler was set."""
    return code == os.EX_OK or code == -number
