"""The command line: `mqdb ...` and `python -m mqdb ...`. The only part of mqdb that may import mqdb_client."""


def main() -> None:
    """The console entry. Ends the process."""
    import signal
    import sys

    # Not at the top: worker processes of the benchmark import this package and need none of it.
    from mqdb.cli.app import run

    # Not the end at once: consumers leave their group, the demo removes its directory.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    sys.exit(run(sys.argv[1:]))
