"""A process that owns or shares an embedded PostgreSQL; run as a script by test_embedded_processes.

    python embedded_process.py HOME [outlives]

Prints a line of JSON when the server is ready and whenever the role of this process changes. Exits at the end of
standard input.
"""

import json
import sys
import threading
from pathlib import Path

from mqdb.embedded import SharedPostgres, open_or_attach
from mqdb.errors import EmbeddedError


def report(shared: SharedPostgres) -> None:
    sys.stdout.write(json.dumps({"is_owner": shared.is_owner, "dsn": shared.dsn}) + "\n")
    sys.stdout.flush()


def report_changes(shared: SharedPostgres, closing: threading.Event) -> None:
    was_owner = shared.is_owner
    while not closing.wait(0.02):
        if shared.is_owner != was_owner:
            was_owner = shared.is_owner
            report(shared)


def main(home: Path, *words: str) -> None:
    try:
        shared = open_or_attach(home, outlives_owner="outlives" in words)
    except EmbeddedError as exc:
        sys.exit(str(exc))
    with shared:
        shared.watch()
        report(shared)
        closing = threading.Event()
        reporter = threading.Thread(target=report_changes, args=(shared, closing))
        reporter.start()
        sys.stdin.read()
        closing.set()
        reporter.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
