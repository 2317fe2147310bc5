"""`mqdb bench`: how fast this machine is, beside reference points of its own.

Each benchmark is a module that says what is compared with what; `running` carries it out on a `testbed`, in
`rounds`, with load from `workers`, and prints the `report`.
"""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of the benchmark to the command line."""
    # Not at the top: worker processes import this package and need none of it.
    from mqdb.cli.bench.commands import app as bench

    app.add_typer(bench, name="bench")
