"""The benchmark commands of the checkout."""

import sys

from benchmarks.bench import commands, more_commands  # noqa: F401 - the second adds its commands to those of the first
from mqdb.cli.app import app, run

if __name__ == "__main__":
    app.registered_groups = [group for group in app.registered_groups if group.name != "bench"]
    app.add_typer(commands.app, name="bench")
    sys.exit(run(["bench", *sys.argv[1:]]))
