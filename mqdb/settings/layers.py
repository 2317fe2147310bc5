"""The layers of the settings: arguments, the environment, a TOML file, and the defaults."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from platformdirs import user_data_path

from mqdb.common.dsn import hide_dsn
from mqdb.errors import SettingInvalid
from mqdb.settings.values import expanded

FILE_NAME = "mqdb.toml"
ENV_PREFIX = "MQDB_"
DEFAULT = "default"


def default_home() -> Path:
    """The default directory of the embedded PostgreSQL and mqdb.toml, if MQDB_HOME is not set."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return Path("/var/lib/mqdb") if is_root else user_data_path("mqdb", appauthor=False)


class Layer(NamedTuple):
    """Settings from one source, by name. `source` is argument, environment, the path of the file or default."""

    source: str
    values: Mapping[str, Any]

    def origin(self, name: str) -> str:
        """The source of a setting in this layer, as shown in errors."""
        return f"environment {variable_of(name)}" if self.source == "environment" else self.source


def stripped(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values without blanks around strings, which an environment file or a YAML document easily adds."""
    return {name: value.strip() if isinstance(value, str) else value for name, value in values.items()}


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def read_environment(names: Iterable[str]) -> Layer:
    """The settings with these names from the environment. An empty or blank variable counts as unset."""
    found = stripped({name: os.environ.get(variable_of(name), "") for name in names})
    return Layer("environment", {name: value for name, value in found.items() if value})


def home_of(*layers: Layer) -> Path:
    """The home directory, unless a file overrides it. Raises SettingInvalid."""
    for layer in layers:
        if home := layer.values.get("home"):
            try:
                return expanded(home)
            except (TypeError, ValueError) as error:
                raise SettingInvalid("home", hide_dsn(str(home)), layer.origin("home"), str(error)) from None
    return default_home()


def read_file(config: str | Path | None, home: Path) -> Layer:
    """The layer of the TOML file; empty if no file is named and the home has no file. Raises SettingInvalid."""
    source = "argument" if config else f"environment {ENV_PREFIX}CONFIG"
    named = config or os.environ.get(ENV_PREFIX + "CONFIG", "").strip()
    path = Path(named) if named else home / FILE_NAME

    def refuse(reason: str) -> NoReturn:
        raise SettingInvalid("config", hide_dsn(str(path)), source if named else "the home directory", reason) from None

    try:
        path = expanded(path).absolute()
    except ValueError as exc:
        refuse(str(exc))
    try:
        content = stripped(tomllib.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        if named:
            refuse("there is no such file")
        return Layer(DEFAULT, {})
    except OSError as exc:
        refuse(f"cannot be read: {exc.strerror}")
    except (ValueError, RecursionError) as exc:
        refuse(f"is not TOML: {exc}")
    if "home" in content:
        if not named:
            refuse("sets home, but was found there; set MQDB_HOME, or name the file with --config")
        try:
            content["home"] = path.parent / expanded(str(content["home"]))
        except ValueError as exc:
            raise SettingInvalid("home", hide_dsn(str(content["home"])), f"file {path}", str(exc)) from None
    return Layer(f"file {path}", content)
