"""The target of a worker: `shop.tasks:app`, a module and the name of an App in it."""

import importlib
import os
import sys
from importlib.util import find_spec

from mqdb.errors import ParameterInvalid
from mqdb_client import App

_DEFAULT_NAME = "app"


def load(target: str) -> App:
    """Import the application. Raises ParameterInvalid, and what its module raises."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, unless PYTHONSAFEPATH is set
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ParameterInvalid("TARGET", target, "write MODULE:NAME, such as shop.tasks:app")
    try:
        spec = find_spec(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        spec = None
    if spec is None:
        raise ParameterInvalid("TARGET", target, f"there is no module {module_name} here or where Python looks")
    module = importlib.import_module(module_name)
    app = getattr(module, name or _DEFAULT_NAME, None)
    if not isinstance(app, App):
        have = ", ".join(key for key, value in vars(module).items() if isinstance(value, App)) or "none"
        raise ParameterInvalid("TARGET", target, f"{module_name} has no App of that name; it has {have}")
    return app
