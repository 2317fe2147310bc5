"""`mqdb config`: what is set, and where it came from."""

import json
from typing import Annotated

import typer

from mqdb.cli.options import start, warn_of_unknown_variables


def config(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show every setting, its value and where it came from.

    An argument wins over the environment, that over the TOML file, that over
    the default. Passwords are not shown. A variable MQDB_... that is not known
    is named on standard error.

    \b
    [bold]Examples[/bold]
      mqdb config
      MQDB_FILE_RESERVED_TIME=30d mqdb config
      mqdb config --config staging.toml --json
    """
    settings = start(context)
    warn_of_unknown_variables()
    lines = settings.lines()
    if as_json:
        values = {line.name: _plain(getattr(settings, line.name), line.value) for line in lines}
        print(json.dumps({line.name: {"value": values[line.name], "origin": line.origin} for line in lines}, indent=2))
        return
    from mqdb.cli.console import standard_output, table

    standard_output().print(table(("setting", "value", "from"), lines))


def _plain(value: object, text: str) -> object:
    """A value as JSON, if JSON has this type; other values as text."""
    return value if value is None or isinstance(value, bool | int | float) else text
