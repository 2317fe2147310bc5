"""Rendering of the dashboard's pages. Every value is escaped."""

from typing import Any, Final

from mqdb.dashboard.assets import VENDORED
from mqdb.drawing.templating import environment

_environment: Final = environment("mqdb.dashboard")
_environment.globals.update(assets={each.file.partition("-")[0]: each.file for each in VENDORED})


def render(template: str, **context: Any) -> str:
    """Render a template. Raises UndefinedError if the context lacks a name in the template."""
    return _environment.get_template(template).render(context)
