"""Pages of the reference, generated from the code: commands, settings, errors, tables and the Python API.

Each function returns Markdown. A test checks that the pages contain every command, setting, error and table.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import typer

import mqdb_client
from mqdb import errors
from mqdb.cli.app import app
from mqdb.pipeline import errors as pipeline_errors
from mqdb.settings import settings
from mqdb_client import aio

ROOT: Final = Path(__file__).resolve().parent.parent

#: The names of the Python API by page. `test_reference.py` checks that no name is missing.
PAGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "producers": (
        "Producers",
        (
            *("Producer", "TransactionProducer", "SendResult", "SendStatus", "TransactionSendResult", "ReplyMessage"),
            *("create_reply_message", "split_batches", "PreparedMessage", "TransactionListener"),
            *("LocalTransactionState", "Durability", "Compression", "MessageQueueSelector", "select_by_hash"),
            *("select_random", "SendMessageHook", "CheckForbiddenHook", "SendMessageContext", "SendMode"),
        ),
    ),
    "consumers": (
        "Consumers",
        (
            *("PushConsumer", "LitePullConsumer", "SimpleConsumer", "MessageListener", "MessageListenerOrderly"),
            *("MessageListenerExactlyOnce", "ConsumeConcurrentlyStatus", "ConsumeConcurrentlyContext"),
            *("ConsumeOrderlyStatus", "ConsumeOrderlyContext", "ConsumeMessageHook", "ConsumeMessageContext"),
            *("ConsumeReturnType", "MessageModel", "ConsumeFromWhere", "ConsumeMode"),
            "TopicMessageQueueChangeListener",
        ),
    ),
    "applications": ("Applications", ("App", "AppCron", "Listener", "ListenerGroup", "exponential")),
    "messages": (
        "Messages, filters, settings and logs",
        (
            *("Message", "ReceivedMessage", "MessageQueue", "MessageType", "MessageSelector", "MessageFilter"),
            *("ExpressionType", "explain_selector", "SelectorExplanation", "Trial", "Settings", "load_settings"),
            *("SettingLine", "BrokerDsn", "HttpAddress", "default_home", "Clock", "DelayLevels", "FieldFormatter"),
            "JsonFormatter",
        ),
    ),
    "administration": ("Administration", ("Admin", "BrokerAdmin", "Answers")),
    "aio": ("asyncio", tuple(aio.__all__)),
    "spark": ("Spark", ()),
}


def api(page: str) -> str:
    """A page of the Python API, for mkdocstrings."""
    title, names = PAGES[page]
    package = "mqdb_client.aio" if page == "aio" else "mqdb_client"
    if page == "administration":
        others = {name for _, each in PAGES.values() for name in each}
        names += tuple(name for name in mqdb_client.__all__ if name not in others and name != "errors")
    if page == "spark":
        from mqdb import pipeline

        package, names = "mqdb.pipeline", tuple(pipeline.__all__)
    parts = [f"# {title}"]
    for name in names:
        parts.append(f"::: {_identifier(package, name)}")
        thing = getattr(__import__(package, fromlist=[name]), name)
        options = getattr(getattr(thing, "__init__", None), "options", None)
        if options:
            rows = [f"| `{option}` | {_cell(limits)} | {_cell(text)} |" for option, (limits, text) in options.items()]
            parts += [f"**Options of {name}**", "\n".join(["| option | value | |", "|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _identifier(package: str, name: str) -> str:
    """The name of an object in its own module, because mkdocstrings does not follow imports of a package."""
    thing = getattr(__import__(package, fromlist=[name]), name)
    module = getattr(thing, "__module__", None)
    if module is None or not module.startswith(("mqdb.", "mqdb_client.")) or not hasattr(thing, "__qualname__"):
        return f"{package}.{name}"
    return f"{module}.{thing.__qualname__}"


def commands() -> str:
    """All commands with their help and options."""
    parts = ["# Every command"]
    root = typer.main.get_command(app)
    for path, command in _leaves(root, ("mqdb",)):
        usage = " ".join([*path, *command.collect_usage_pieces(typer.Context(command))])
        help_text = inspect.cleandoc(command.help or "").replace("\b", "").replace("[bold]", "").replace("[/bold]", "")
        prose, _, examples = help_text.partition("\nExamples\n")
        parts += [f"## {' '.join(path)}", f"```console\n$ {usage}\n```", prose.strip()]
        if examples:
            parts.append(f"```console\n{inspect.cleandoc(examples)}\n```")
        rows = [row for parameter in command.params if (row := _option(parameter)) is not None]
        if rows:
            parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands below a command that have no subcommands, with their full names."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, each in children.items():
        yield from _leaves(each, (*path, name))


def _option(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False):
        return None
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name}`"
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = f" Default: `{default}`." if isinstance(default, str | int | float) and default not in (False, "") else ""
    return f"| {names} | {text}{shown} |"


def setting_rows() -> dict[str, tuple[str, str]]:
    """The default and the text of each setting."""
    tree = ast.parse(Path(settings.__file__).read_text(encoding="utf-8"))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    texts: dict[str, str] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts[statement.target.id] = " ".join(text.split())
    default = settings.Settings()
    rows = {}
    for name, field in settings.Settings.model_fields.items():
        shown = "depends on the user" if field.default_factory is not None else default.shown(name) or "unset"
        rows[name] = (shown, texts.get(name, ""))
    return rows


def settings_page() -> str:
    """All settings."""
    rows = [f"| `MQDB_{name.upper()}` | {default} | {text} |" for name, (default, text) in setting_rows().items()]
    names = "In `mqdb.toml` a setting has its name in small letters, without the prefix."
    winner = "[Configuration](../configuration.md) says which value wins."
    table = "\n".join(["| variable | default | |", "|---|---|---|", *rows])
    return "\n\n".join(["# Every setting", f"{names} {winner}", table]) + "\n"


def error_classes() -> list[type[errors.MqdbError]]:
    """All errors; a base class comes before its subclasses."""

    def below(parent: type[errors.MqdbError]) -> Iterator[type[errors.MqdbError]]:
        yield parent
        for child in parent.__subclasses__():
            yield from below(child)

    modules: tuple[ModuleType, ...] = (errors, pipeline_errors)
    names = {module.__name__ for module in modules}
    return [each for each in dict.fromkeys(below(errors.MqdbError)) if each.__module__ in names]


def errors_page() -> str:
    """All errors with their codes and sentences."""
    parts = ["# Every error", "[Errors](../configuration.md#errors) has the six families, and what to do next."]
    for each in error_classes():
        code = getattr(each, "code", None)
        parents = ", ".join(f"`{base.__name__}`" for base in each.__bases__ if issubclass(base, errors.MqdbError))
        kind = f"A {parents}. " if parents else ""
        number = "" if code is None else f"Code {int(code)}, `{code.name}`."
        text = (inspect.getdoc(each) or "").split("\n\n")[0].replace("\n", " ")
        parts += [f"## {each.__name__}", text, kind + number]
        sentence = getattr(each, "sentence", None)
        if isinstance(sentence, str) and sentence:
            parts.append(f"```text\n{sentence}\n```")
    return "\n\n".join(parts) + "\n"


_COMMENT: Final = re.compile(r"COMMENT ON (TABLE|VIEW|COLUMN|FUNCTION) mqdb\.(\S+?(?:\([^)]*\))?) IS '((?:[^']|'')*)'")


def comments() -> list[tuple[str, str, str]]:
    """The kind, the name and the text of each COMMENT ON."""
    sources = [ROOT / "migrations/versions/0100_schema.py", *sorted((ROOT / "mqdb/sql").rglob("*.sql"))]
    found = (_COMMENT.findall(source.read_text(encoding="utf-8")) for source in sources)
    return [(kind, name, text.replace("''", "'")) for each in found for kind, name, text in each]


def tables_page() -> str:
    """Tables, views and functions of the schema, with their comments."""
    found = comments()
    columns: dict[str, list[str]] = {}
    for kind, name, text in found:
        if kind == "COLUMN":
            table, _, column = name.rpartition(".")
            columns.setdefault(table, []).append(f"| `{column}` | {_cell(text)} |")
    intro = "They are in the schema `mqdb`. `\\d+ mqdb.message` in psql shows these comments, too."
    parts = ["# Tables, views and functions", intro]
    for title, wanted in (("Views", "VIEW"), ("Tables", "TABLE")):
        parts.append(f"## {title}")
        for name, text in sorted((name, text) for kind, name, text in found if kind == wanted):
            parts += [f"### {name}", _cell(text)]
            if name in columns:
                parts.append("\n".join(["| column | |", "|---|---|", *columns[name]]))
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in sorted((n, t) for k, n, t in found if k == "FUNCTION")]
    parts += ["## Functions", "\n".join(["| function | |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def pages() -> dict[str, str]:
    """All pages of the reference by their paths."""
    made = {"commands": commands(), "settings": settings_page(), "errors": errors_page(), "tables": tables_page()}
    return {f"reference/{name}.md": text for name, text in (made | {page: api(page) for page in PAGES}).items()}
