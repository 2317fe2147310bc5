"""Each warning and error in the log names its subject, whatever formatter prints it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
SOURCES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
    for folder in ("client", "mqdb")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

#: It logs the sentences of its callers.
LOG_ERROR = "mqdb/common/user_error.py"

#: The methods of a logger, with the place of the sentence among the arguments.
METHODS = {"warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}

#: Sentences that have nothing to name, with the reason.
NAMELESS = {
    "a call failed unexpectedly": "the traceback tells all that is known",
    "a request failed unexpectedly": "the traceback tells all that is known",
}

FIELD = re.compile(r"%\(\w+\)|%[sdr]")


class Logged(NamedTuple):
    """A logging call: its module and line, its sentence, and the argument with the values of the sentence."""

    module: str
    line: int
    sentence: ast.expr
    values: str
    extra: str


def logged() -> Iterator[Logged]:
    """All calls in the client and in mqdb that log a warning or an error."""
    for module, tree in SOURCES.items():
        for node in ast.walk(tree) if module != LOG_ERROR else ():
            if isinstance(node, ast.Call) and (arguments := arguments_of(node)):
                sentence, *values = arguments
                extra = "".join(ast.unparse(each.value) for each in node.keywords if each.arg == "extra")
                yield Logged(module, node.lineno, sentence, ", ".join(map(ast.unparse, values)), extra)


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """The sentence and the values of a logging call; [] for any other call."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="logger"), attr=method) if method in METHODS:
            return call.args[METHODS[method] :]
        case ast.Name(id="log_error"):
            return [call.args[1], call.args[3]]
    return []


def texts_of(call: Logged) -> set[str]:
    """The strings that may be the sentence: a literal, or the values assigned to a name in this module or elsewhere."""
    match call.sentence:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Name(id=name):
            here = set(given_to(name, SOURCES[call.module]))
            return here or {text for tree in SOURCES.values() for text in given_to(name, tree)}
    return set()


def given_to(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.Constant(value=str(text)))
            ) if target == name:
                yield text


def test_each_warning_and_error_names_a_field() -> None:
    nameless = set()
    for call in logged():
        texts = texts_of(call)
        assert texts, f"{call.module}:{call.line}: a sentence that is not a text"
        nameless |= {text for text in texts if not FIELD.search(text)}

    assert nameless == NAMELESS.keys()


def test_a_sentence_has_its_values_from_the_fields_of_its_record() -> None:
    others = [f"{call.module}:{call.line}" for call in logged() if call.extra and call.values != call.extra]

    assert others == []
