"""The prose check: finds sentences of the project that read as translated, by ten patterns.

    python -m checks.prose                 fails if a file has more or fewer matches than in prose_known.txt
    python -m checks.prose --show [PATH]   prints all sentences that match, in files below these paths
    python -m checks.prose --shrink        lowers the numbers in prose_known.txt
    python -m checks.prose --count         prints how many sentences match, by kind of text and pattern

The check reads docstrings, help texts, error sentences, log lines, COMMENT ON, pages of the dashboard and Markdown. In
`mqdb` and `client` it also reads all other literals: reasons of errors, findings of the doctor, output of commands.
Its patterns find candidates, and a reader decides: a good sentence is added to prose_accepted.txt.
"""

import argparse
import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
KNOWN: Final = ROOT / "checks" / "prose_known.txt"
ACCEPTED: Final = ROOT / "checks" / "prose_accepted.txt"

#: Folders whose literals are all read.
_OWN_CODE: Final = ("client", "mqdb")

#: Text that people wrote elsewhere, or that a program wrote.
_SKIPPED: Final = (".venv", ".git", ".peers", "build", "dist", "target", "node_modules", "vendored", "data")


class Pattern(NamedTuple):
    """A pattern that makes a sentence read as translated. `kinds` limits the pattern to some kinds of text."""

    name: str
    what: str
    expression: re.Pattern[str]
    kinds: frozenset[str] = frozenset()


class Sentence(NamedTuple):
    """One sentence of a file, without line breaks."""

    path: str
    line: int
    kind: str
    text: str


def _pattern(name: str, what: str, expression: str, *kinds: str) -> Pattern:
    return Pattern(name, what, re.compile(expression), frozenset(kinds))


_VERB: Final = r"(?:is|are|was|were|has|have|had|may|might|can|could|would|will|does|do|did|must|needs?)"

PATTERNS: Final = (
    _pattern(
        "P1",
        "a clause as a noun",
        r"^(?:What|Who|Whoever|Whatever|How|Which|Whose) (?!\w+ *\?)[^?]*$"
        r"|\b(?:of|for|to|with|by|from|in|on|at|than|as) (?:what|whatever|whoever|who) (?!for\b)\w+",
    ),
    _pattern(
        "P2",
        "none or no as a predicate",
        r"\b(?:is|are|was|were|has|have|had|be|as|where|if|gives?|with|find|finds) none\b"
        r"|\bit is none\b|\bthere (?:is|are|was|were) none\b"
        r"|(?<!there )(?<!There )\b(?:is|are|was|were) no (?!(?:longer|more|less|way|need|such|different)\b)\w+",
    ),
    _pattern(
        "P3", "not ... any more, anew, in place of", r"\bany more\b|\bno more (?!than\b)|\banew\b|\bin place of\b"
    ),
    _pattern(
        "P4",
        "for as a conjunction",
        rf", for (?:(?:there|it|they|he|we|you|nobody|nothing|this|that) {_VERB}"
        rf"|(?:(?!that|which|who)\w+ ){{1,4}}{_VERB}\b)",
    ),
    _pattern(
        "P5",
        "where for a condition",
        r"(?:^|[,;:] )[Ww]here (?:there|it|that|they|nobody|nothing|no|none|one|some|all|an?|the|this|its|you)\b"
        r"|\bwhere (?:there (?:is|are|was|were)|it (?:is|has|does|can|was)|that|nobody|nothing|none|no \w+|possible"
        r"|needed|allowed|known|given|unset|missing|they)\b",
    ),
    _pattern("P6", "piles of genitives, a bare of", r"^Of \w|(?:\bof (?:(?:the|an?|its|their|each) )?[\w-]+ ){3,}"),
    _pattern(
        "P7",
        "the same without its noun",
        r"(?<!all )\b[Tt]he same(?:[.,;:)]|$| (?:where|with|if|of|by|in|when|and)\b)|^Again[,: .]",
    ),
    _pattern(
        "P8",
        "a docstring that needs the signature",
        r"^(?:That|Those|They|It|Its|He|She|Go|As|And|Or|But|So|With|By|From|Where|Until|Not|None)\b",
        "summary",
    ),
    _pattern(
        "P9",
        "a program as a person",
        r"\b(?:nobody|somebody|whoever|strangers?|hears?|(?:is|are|was|were|be|been) told)\b",
    ),
    _pattern(
        "P10",
        "words that hide a number, a time or a noun",
        r"\bsome \d|\bthe \d+(?![\w,.%:-])(?! \w)|\b[Mm]eanwhile\b",
    ),
)


# -- what is read -------------------------------------------------------------------------------


def sentences(root: Path = ROOT) -> Iterator[Sentence]:
    """All sentences of the project."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(part in _SKIPPED or part.endswith(".egg-info") for part in parts) or not path.is_file():
            continue
        reader = _of_own_code if path.suffix == ".py" and parts[0] in _OWN_CODE else _READERS.get(path.suffix)
        if reader is not None:
            for line, kind, text in reader(path.read_text(encoding="utf-8")):
                for sentence in _split(text):
                    yield Sentence(path.relative_to(root).as_posix(), line, kind, sentence)
                    kind = "docstring" if kind == "summary" else kind  # it is the first sentence


def _of_own_code(source: str) -> Iterator[tuple[int, str, str]]:
    """All texts that `_of_python` finds, and all other literals."""
    found = list(_of_python(source))
    yield from found
    read = {text for *_, text in found}
    yield from ((line, kind, text) for line, kind, text in _literals(ast.parse(source)) if text not in read)


def _literals(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    """All literals below a node, except docstrings of modules, classes and functions."""
    if isinstance(node, ast.Constant | ast.JoinedStr) and (text := _text(node)):
        yield node.lineno, "text", text
    docstring: ast.stmt | None = None
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = next(iter(node.body), None)
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Expr(value=ast.Constant(value=str(text))):  # the docstring of an attribute
                if child is not docstring:
                    yield child.lineno, "docstring", _without_blocks(inspect.cleandoc(text))
            case ast.Constant() if isinstance(node, ast.JoinedStr):  # a part of the text
                pass
            case _:
                yield from _literals(child)


def _of_python(source: str) -> Iterator[tuple[int, str, str]]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # an example of one
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                summary, _, rest = text.partition("\n\n")
                yield getattr(node, "lineno", 1), "summary", summary
                yield getattr(node, "lineno", 1), "docstring", _without_blocks(rest)
            if isinstance(node, ast.ClassDef):
                yield from _error_sentences(node)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            # The text of an option comes after its type and its rule.
            texts = node.slice.elts[1:] if isinstance(node.slice, ast.Tuple) else []
            yield from ((each.lineno, "help", text) for each in texts if (text := _text(each)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "COMMENT ON" in node.value:
            yield from ((node.lineno + line, kind, text) for line, kind, text in _of_sql(node.value))


def _error_sentences(node: ast.ClassDef) -> Iterator[tuple[int, str, str]]:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="sentence" | "remedy")], value=value) if text := _text(value):
                yield statement.lineno, "error", text


def _of_call(node: ast.Call) -> Iterator[tuple[int, str, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_logger = isinstance(node.func, ast.Attribute) and "logger" in ast.unparse(node.func.value)
    if is_logger and name in ("debug", "info", "warning", "error", "exception", "log"):
        for argument in node.args[:2]:
            if text := _text(argument):
                yield node.lineno, "log", text
                break
    for keyword in node.keywords:
        if keyword.arg in ("help", "epilog", "short_help") and (text := _text(keyword.value)):
            yield node.lineno, "help", text


def _text(node: ast.expr) -> str:
    """The text of a literal, with X for each field; empty for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
    return ""


def _of_markdown(source: str) -> Iterator[tuple[int, str, str]]:
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    line = 1
    for block in re.split(r"(\n(?=\s*\n|\s*[-*|#>]|\s*\d+\. ))", text):
        stripped = re.sub(r"^\s*(?:[-*>]+|\d+\.) ", "", block.strip("\n"))
        cells = stripped.strip("|").split(" | ") if stripped.lstrip().startswith("|") else [stripped]
        cells = [] if stripped.startswith("#") else cells  # a title
        for cell in cells:
            yield line, "markdown", cell
        line += block.count("\n")


def _of_sql(source: str) -> Iterator[tuple[int, str, str]]:
    code = re.sub(r"--.*", "", source)
    for found in re.finditer(r"(COMMENT ON [^;']*? IS )?'((?:[^']|'')*)'", code):
        kind = "comment on" if found[1] else "text"
        yield code.count("\n", 0, found.start()) + 1, kind, found[2].replace("''", "'")


class _Page(HTMLParser):
    """The texts of a template."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[int, str, str]] = []
        self._is_code = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_code = tag in ("script", "style", "code", "pre")
        for name, value in attrs:
            if name in ("title", "placeholder", "aria-label") and value:
                self.texts.append((self.getpos()[0], "page", value))

    def handle_endtag(self, tag: str) -> None:
        self._is_code = False

    def handle_data(self, data: str) -> None:
        if not self._is_code:
            self.texts.append((self.getpos()[0], "page", data))


def _of_page(source: str) -> Iterator[tuple[int, str, str]]:
    page = _Page()
    page.feed(re.sub(r"\{#.*?#\}|\{%.*?%\}", "", re.sub(r"\{\{.*?\}\}", "X", source, flags=re.DOTALL), flags=re.DOTALL))
    yield from page.texts


_READERS: Final[dict[str, Callable[[str], Iterator[tuple[int, str, str]]]]] = {
    ".py": _of_python,
    ".md": _of_markdown,
    ".sql": _of_sql,
    ".html": _of_page,
}


def _without_blocks(docstring: str) -> str:
    """A docstring without its tables, drawings and examples, which are indented."""
    return "\n".join("" if line.startswith(("    ", ">>>", "|")) else line for line in docstring.splitlines())


def _split(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        words = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`(\[*])", words):
            if len(sentence.split()) > 1:
                yield sentence


# -- what is wrong ------------------------------------------------------------------------------


def hits(found: Iterable[Sentence]) -> Iterator[tuple[Pattern, Sentence]]:
    """Each sentence with each pattern that it matches."""
    for sentence in found:
        plain = re.sub(r"`[^`]*`", "X", sentence.text)
        for pattern in PATTERNS:
            if (not pattern.kinds or sentence.kind in pattern.kinds) and pattern.expression.search(plain):
                yield pattern, sentence


def _accepted() -> set[str]:
    return set(ACCEPTED.read_text(encoding="utf-8").splitlines()) if ACCEPTED.exists() else set()


def _known() -> Counter[tuple[str, str]]:
    lines = KNOWN.read_text(encoding="utf-8").splitlines() if KNOWN.exists() else []
    return Counter({(name, path): int(count) for count, name, path in map(str.split, lines)})


def _write_known(known: Counter[tuple[str, str]]) -> None:
    lines = [f"{count} {name} {path}\n" for (name, path), count in sorted(known.items(), key=lambda one: one[0][::-1])]
    KNOWN.write_text("".join(lines), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", nargs="*", metavar="PATH", help="print all matches below these paths")
    parser.add_argument("--shrink", action="store_true", help="lower the numbers in prose_known.txt")
    parser.add_argument("--count", action="store_true", help="print how many sentences match, by kind and pattern")
    given = parser.parse_args(arguments)
    accepted = _accepted()
    found = [(pattern, sentence) for pattern, sentence in hits(sentences()) if sentence.text not in accepted]
    if given.show is not None:
        below = tuple(given.show)
        for pattern, sentence in found:
            if not below or sentence.path.startswith(below):
                print(f"{sentence.path}:{sentence.line}: {pattern.name} ({pattern.what}): {sentence.text}")
        return 0
    if given.count:
        for (kind, name), count in sorted(
            Counter((sentence.kind, pattern.name) for pattern, sentence in found).items()
        ):
            print(f"{kind:10} {name:3} {count:5}")
        print(f"{len(found)} matches")
        return 0
    known, now = _known(), Counter((pattern.name, sentence.path) for pattern, sentence in found)
    if given.shrink:
        known &= now
        _write_known(known)
    for pattern, sentence in found:
        if now[pattern.name, sentence.path] > known[pattern.name, sentence.path]:
            print(f"{sentence.path}:{sentence.line}: {pattern.name} ({pattern.what}): {sentence.text}")
    if now - known:
        print(f"{sum((now - known).values())} more than {KNOWN.name} allows; the lines above have all of these files")
    for (name, path), count in sorted((known - now).items()):
        print(f"{KNOWN.name}: {path} has {count} fewer matches of {name}; python -m checks.prose --shrink notes it")
    return 1 if now != known else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
