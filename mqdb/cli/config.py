"""`mqdb config`: the settings in effect, and their sources."""

import json
from typing import Annotated

import typer

from mqdb.cli.options import start, warn_of_unknown_variables


def config(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every setting with its value and source.

    An argument takes precedence over the environment, the environment over the TOML file, and the file over the
    default. Passwords are hidden. Unknown variables MQDB_... are listed on standard error.

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
    """The value itself if JSON has its type, otherwise its text."""
    return value if value is None or isinstance(value, bool | int | float) else text
