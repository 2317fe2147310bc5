"""Options that every command accepts, before or after its name, and the settings made from them."""

import getpass
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mqdb.cli.logs import LogFormat, configure

if TYPE_CHECKING:
    from mqdb.settings import Settings
    from mqdb_client import Admin

logger = logging.getLogger(__name__)

_PANEL = "Options of every command"
_PREFIX = "mqdb.cli."


def start(context: typer.Context, **arguments: Any) -> "Settings":
    """Set up logging and load the settings, at the start of a command. Raises SettingInvalid.

    `arguments` are settings for which only this command has options.
    """
    # Imported here, because the import takes half a second, which --help need not wait for.
    from mqdb.settings import load_settings

    log_from(context, logging.WARNING)
    settings = load_settings(
        config=given(context, "config"), dsn=given(context, "dsn"), home=given(context, "home"), **arguments
    )
    return settings if settings.actor else settings.model_copy(update={"actor": _user()})


@contextmanager
def administering(context: typer.Context) -> "Iterator[Admin]":
    """Start a command that uses brokers, like `start`. Yields an Admin for the brokers in the settings."""
    settings = start(context)
    from mqdb_client import Admin

    with Admin(settings=settings) as admin:
        yield admin


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return None


def log_from(context: typer.Context, level: int) -> None:
    """Log from this level on; each -v lowers the level by one step."""
    configure(level - 10 * given(context, "verbose", 0), given(context, "log_format", LogFormat.TEXT))


def warn_of_unknown_variables() -> None:
    """Log a warning for each environment variable MQDB_... that is not a setting."""
    from mqdb.settings import unknown_variables

    for variable in unknown_variables():
        fields = {"variable": variable.name}
        sentence = "ignored unknown environment variable %(variable)s"
        if variable.near:
            fields["did_you_mean"] = variable.near
            sentence = "ignored unknown environment variable %(variable)s; did you mean %(did_you_mean)s?"
        logger.warning(sentence, fields, extra=fields)


def given(context: typer.Context, name: str, default: Any = None) -> Any:
    """The value of an option that every command has."""
    return context.meta.get(_PREFIX + name, default)


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    # A context shares this dict with its subcommands; the rightmost option wins.
    if value is not None:
        context.meta[_PREFIX + str(parameter.name)] = value
    return value


def _option(*names: str, help: str, metavar: str | None = None, count: bool = False) -> Any:
    return typer.Option(
        *names,
        help=help,
        metavar=metavar,
        count=count,
        callback=_keep,
        expose_value=False,
        show_default=False,
        rich_help_panel=_PANEL,
    )


def _everywhere(
    dsn: Annotated[
        str | None,
        _option(
            "--dsn",
            metavar="URI",
            help="The database, or several: 'broker-a=URI;broker-b=URI'; if not given, the embedded database in the "
            "home directory. MQDB_DSN MQDB_DSN",
        ),
    ] = None,
    home: Annotated[
        Path | None,
        _option("--home", metavar="DIR", help="The directory of the embedded PostgreSQL and mqdb.toml. MQDB_HOME"),
    ] = None,
    config: Annotated[
        Path | None,
        _option("--config", metavar="FILE", help="A TOML file with settings. MQDB_CONFIG"),
    ] = None,
    verbose: Annotated[
        int | None,
        _option("--verbose", "-v", count=True, help="Log more on standard error; -vv logs even more."),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        _option("--log-format", help="The format of the log on standard error: text, or one JSON object on each line."),
    ] = None,
) -> None:
    """Never called: typer reads the options from its signature."""


@cache
def _parameters() -> tuple[Any, ...]:
    probe = typer.Typer(add_completion=False)
    probe.command()(_everywhere)
    return tuple(typer.main.get_command(probe).params)


class Command(TyperCommand):
    """A command that also accepts the options of every command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or ()), *_parameters()]
        super().__init__(*args, **kwargs)


class Group(TyperGroup):
    """A group of commands that also accepts the options of every command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or ()), *_parameters()]
        super().__init__(*args, **kwargs)


def command_group(help: str) -> typer.Typer:
    """Create a group of commands. Without a subcommand, it prints this help."""
    app = typer.Typer(cls=Group, rich_markup_mode="rich", help=help)

    @app.callback(invoke_without_command=True)
    def print_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return app
