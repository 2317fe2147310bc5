"""All commands in one place, and the handling of errors: a user's mistake prints one line, never a traceback."""

import errno
import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from traceback import extract_tb
from typing import Annotated

import typer

from mqdb.cli.acl import app as acl
from mqdb.cli.bench import app as bench
from mqdb.cli.config import config
from mqdb.cli.consume import consume
from mqdb.cli.consumer import app as consumer
from mqdb.cli.cron import app as cron
from mqdb.cli.database import dsn, psql
from mqdb.cli.delay import app as delay
from mqdb.cli.demo.command import demo
from mqdb.cli.dlq.dead_letter_commands import app as dlq
from mqdb.cli.doctor import doctor
from mqdb.cli.group import app as group
from mqdb.cli.grpc import grpc
from mqdb.cli.message import app as message
from mqdb.cli.migrate import migrate
from mqdb.cli.operation import app as operation
from mqdb.cli.options import Command, Group
from mqdb.cli.remoting import remoting
from mqdb.cli.selector import app as selector
from mqdb.cli.send import send
from mqdb.cli.serve import serve
from mqdb.cli.spark import app as spark
from mqdb.cli.terminal import shielded
from mqdb.cli.timer import app as timer
from mqdb.cli.topic import app as topic
from mqdb.cli.transaction import app as transaction
from mqdb.cli.version import print_versions
from mqdb.cli.web import web
from mqdb.cli.worker.command import worker
from mqdb.cli.worker.order import UNUSABLE
from mqdb.errors import ExtraMissing, MqdbError, ParameterInvalid, SelectorSyntaxError, SettingInvalid, cut

INTERRUPTED = 128 + 2

#: Errors that the operating system reports when it refuses to write to a disk. Such an error names no file if the file
#: was already open, as ours are.
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: The extra of the package that installs each library.
_EXTRAS = dict.fromkeys(("alembic", "apscheduler", "jinja2", "prometheus_client", "starlette", "uvicorn"), "server")
_EXTRAS |= {"pyspark": "spark", "pyarrow": "spark", "watchfiles": "reload"}
_EXTRAS |= dict.fromkeys(("grpc", "google", "cryptography"), "grpc")

#: Longest excerpt of a complaint about the command line, which repeats the given arguments.
_MOST = 1_000

#: Names of our packages in paths.
_OURS = {"mqdb", "mqdb_client"}

app = typer.Typer(
    cls=Group,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def mqdb(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions of mqdb, and of all brokers that answer in time.")
    ] = False,
) -> None:
    """A message broker that lives in PostgreSQL and behaves like Apache RocketMQ.

    Without [bold]--dsn[/bold], a command works on the embedded PostgreSQL in the home directory.

    \b
    [bold]Examples[/bold]
      mqdb demo                               see it work, on real flight records
      mqdb serve                              start a broker
      mqdb topic create orders
      mqdb send orders 'one' 'two' --tag new
      mqdb consume orders
      mqdb --version --dsn postgresql://mqdb@db/mqdb
    """
    if version:
        print_versions(context)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


for function in (serve, web, remoting, grpc, worker, demo, migrate, send, consume, config, dsn, doctor):
    app.command(cls=Command)(function)
# Options that mqdb does not know are passed to psql.
app.command(cls=Command, context_settings={"ignore_unknown_options": True})(psql)
app.add_typer(topic, name="topic")
app.add_typer(message, name="message")
app.add_typer(group, name="group")
app.add_typer(consumer, name="consumer")
app.add_typer(delay, name="delay")
app.add_typer(cron, name="cron")
app.add_typer(dlq, name="dlq")
app.add_typer(transaction, name="transaction")
app.add_typer(selector, name="selector")
app.add_typer(timer, name="timer")
app.add_typer(acl, name="acl")
app.add_typer(operation, name="operation")
app.add_typer(spark, name="spark")
app.add_typer(bench, name="bench")


def _open_standard_files() -> None:
    """Open /dev/null for each closed standard file (`>&-`): otherwise a socket could take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            file = open(os.devnull, mode)  # noqa: SIM115 - for good
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


#: `app` as a command that can be called. Building the command takes 20 ms, so a process that runs many commands builds
#: it once.
_command = cache(partial(typer.main.get_command, app))


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return the exit code. MQDB_DEBUG=1 shows the traceback of an error."""
    try:
        return _run(arguments)
    except Exception as error:  # unexpected: the command ends, and prints the place in one line
        if os.environ.get("MQDB_DEBUG"):
            raise
        with shielded():
            print(f"mqdb: {_unexpected(error)}", file=sys.stderr)
        return 1


def _run(arguments: Sequence[str]) -> int:
    _open_standard_files()
    try:
        _check_encoding(arguments)
        with shielded():
            code = _command()(args=list(arguments), prog_name="mqdb", standalone_mode=False)
            sys.stdout.flush()
    except BrokenPipeError:
        # For example `mqdb topic list | head -1`.
        _give_up_output()
        return 1
    except OSError as exc:
        if exc.errno not in _OUTPUT_FULL or exc.filename is not None or os.environ.get("MQDB_DEBUG"):
            raise
        _give_up_output()
        print(f"mqdb: cannot write to standard output: {exc.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except (MqdbError, ModuleNotFoundError, typer.TyperException, typer.Abort) as exc:
        library = (exc.name or "").partition(".")[0] if isinstance(exc, ModuleNotFoundError) else None
        if os.environ.get("MQDB_DEBUG") or library not in (None, *_EXTRAS):
            raise
        error = exc if library is None else ExtraMissing(library, _EXTRAS[library])
        with shielded():
            print(f"mqdb: {_told(error)}", file=sys.stderr)
        return UNUSABLE if isinstance(error, ExtraMissing | SettingInvalid) else 1
    return code if isinstance(code, int) else 0


def _check_encoding(arguments: Sequence[str]) -> None:
    """Raise ParameterInvalid for an argument that is not UTF-8, because neither PostgreSQL nor JSON could hold it."""
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ParameterInvalid(f"argument {number}", os.fsencode(argument), "is not UTF-8") from None


def _give_up_output() -> None:
    """Redirect standard output to /dev/null, because Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> str:
    """The text of an error for standard error: one line, or several if the error points at a place in a text."""
    return str(error) if isinstance(error, SelectorSyntaxError) else sentence(error)


def _unexpected(error: Exception) -> str:
    """The sentence about an unexpected error, with its place in our code."""
    where = [frame for frame in extract_tb(error.__traceback__) if _OURS & set(Path(frame.filename).parts)][-1]
    reason = cut(_one_line(str(error)), _MOST)
    return (
        f"unexpected {type(error).__name__} in {Path(where.filename).name}, line {where.lineno}: {reason}; "
        "MQDB_DEBUG=1 shows the traceback, which belongs into a bug report"
    )


def sentence(error: Exception) -> str:
    """The message of an error, as one line."""
    if isinstance(error, typer.Abort):
        return "aborted"
    if not isinstance(error, typer.TyperException):
        return _one_line(str(error))
    message = cut(_one_line(error.format_message()).rstrip("."), _MOST)
    context = getattr(error, "ctx", None)
    return f"{message[0].lower()}{message[1:]}; see: {context.command_path} --help" if context else message


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
