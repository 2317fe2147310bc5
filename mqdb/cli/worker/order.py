"""The messages between a worker process and its supervisor: lines of JSON over a socket, one end of which each has.

A process whose other end is closed has no supervisor any longer, and stops. The order may hold a password, so it is not
an argument, which every user of the machine could read.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

#: The exit code of a process that cannot start until somebody mends the application or the settings, or installs an
#: extra: EX_CONFIG.
UNUSABLE: Final = 78

#: A process says that it consumes, that it has announced what it runs and removed crons, and that its event loop turns.
READY: Final = "ready"
ANNOUNCED: Final = "announced"
ALIVE: Final = "alive"

#: How often it tells the latter.
ALIVE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Order:
    """The order of a worker process. `home`, `config` and `dsn` are options of the command line."""

    target: str
    groups: tuple[str, ...] = ()
    dsn: str | None = None
    home: str | None = None
    config: str | None = None
    log_level: int = 30
    log_format: str = "text"
    is_once: bool = False
    """End when all messages are consumed."""
    prunes: bool = False
    """Remove crons that the code has no more."""
    announces: bool = True
    """Print a line for each listener and cron."""
    is_measured: bool = False
    """Keep metrics for the process that watches, and tell it that the loop turns."""

    def line(self) -> bytes:
        """For the socket."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: str | bytes) -> "Order":
        """Parse the line that `line` has made."""
        values = json.loads(line)
        return cls(**values | {"groups": tuple(values["groups"])})


#: Where the metrics of the processes lie; prometheus-client has given it its name.
METRICS_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


def is_end_of_work(code: int, number: int) -> bool:
    """Whether an exit code is that of a process that has ended well, or by a signal before it was listening to it."""
    return code == os.EX_OK or code == -number
