"""The command line: `mqdb ...` and `python -m mqdb ...`. The only part of mqdb that may import mqdb_client."""


def main() -> None:
    """The console entry. Ends the process."""
    import signal
    import sys

    try:
        # Not at the top: worker processes of the benchmark import this package and need none of it.
        from mqdb.cli.app import run
    except KeyboardInterrupt:
        # The imports take a third of a second, and a Ctrl-C in them is no error either.
        sys.exit(128 + signal.SIGINT)
    # Not the end at once: consumers leave their group, the demo removes its directory.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    sys.exit(run(sys.argv[1:]))
