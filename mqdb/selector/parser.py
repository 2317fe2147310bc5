"""The parser, which builds the syntax tree of a selector. The grammar is in `selector.lark`.

This module implements the rules that the grammar cannot express: comments, keywords, the nesting limit, and the
position and reason of a refusal.
"""

import re
from functools import cache
from importlib import resources
from math import isinf
from typing import Any, Final, NamedTuple

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from mqdb.common.property import find_unstorable
from mqdb.errors import shown
from mqdb.selector import syntax
from mqdb.selector.syntax import Node, Refusal

#: Maximum nesting of parentheses, NOT, signs, and further operators in a chain like `a = b = c`.
MAX_NESTING: Final = 200

_END: Final = "$END"

_BLANKS: Final = " \t\n\r\f"

_KEYWORDS: Final = frozenset(
    ("OR", "AND", "NOT", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

#: Names of the terminals of the grammar for people, in the order in which the expected terminals are listed.
_NAMES: Final = {
    "NAME": "a property name",
    "STRING": "a text in single quotes",
    "INTEGER": "a number",
    "DOUBLE": "a number",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "PLUS": "+",
    "MINUS": "-",
    "EQUAL": "=",
    "NOT_EQUAL": "<>",
    "COMPARISON": "< <= > >=",
    **{keyword: keyword for keyword in sorted(_KEYWORDS)},
    _END: "the end",
}

#: Hints for people who know other SQL dialects: the mistake, or what to write instead.
_ADVICE: Final = {
    "'": "the quoted text is not closed",
    '"': "texts are written in single quotes",
    "!": "write <> for not equal",
    "/": "there is no division, or the comment is not closed",
    "&": "write AND",
    "|": "write OR",
    "LIKE": "write CONTAINS, STARTSWITH or ENDSWITH",
}


def parse(text: str) -> Node:
    """The tree of a selector. Raises Refusal if the text is not a selector."""
    _refuse_unstorable(text)
    without_comments = blank_comments(text)
    try:
        return _tree(without_comments)
    except UnexpectedInput as error:
        position = _position(error, text)
        accepted = _accepted(without_comments[:position])
        if _END in accepted and _is_open_comment(without_comments, position):
            return _tree(without_comments[:position])
        raise _refusal(error, position, without_comments, accepted) from None


def _refuse_unstorable(text: str) -> None:
    if found := find_unstorable(text):
        raise Refusal(found.start(), f"PostgreSQL cannot store the character U+{ord(found[0]):04X}")


# -- comments -----------------------------------------------------------------------------------

_STRING: Final = r"(?P<string>'[^']*(?:''[^']*)*')"
_BLOCK: Final = r"/\*.*?\*/"
_COMMENTS: Final = re.compile(rf"{_STRING}|{_BLOCK}|--[^\r\n]*(?:[\r\n]|(?P<last_line>\Z))", re.DOTALL)
_BLOCK_COMMENTS: Final = re.compile(f"{_STRING}|{_BLOCK}", re.DOTALL)


def blank_comments(text: str) -> str:
    """The text with each comment replaced by blanks, so that no other position changes.

    A comment that starts with `--` ends with its line. Without a line end, `--` does not start a comment, but is two
    signs.
    """
    return _COMMENTS.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    if found["string"]:
        return found[0]
    if found.re is _COMMENTS and found["last_line"] is not None:
        return "--" + _BLOCK_COMMENTS.sub(_blank, found[0][2:])
    return " " * len(found[0])


def _is_open_comment(text: str, position: int) -> bool:
    """Whether the rest of the text is a comment whose line has no end."""
    return re.compile(r"--[^\r\n]*\Z").match(text, position) is not None


# -- refusals -----------------------------------------------------------------------------------


def _position(error: UnexpectedInput, text: str) -> int:
    if isinstance(error, UnexpectedToken):
        return len(text) if error.token.type == _END else _start(error.token)
    position: int = vars(error)["pos_in_stream"]  # declared as None
    return position


def _accepted(text: str) -> frozenset[str]:
    """The terminals that may follow a text."""
    state = _parser().parse_interactive(text)
    state.exhaust_lexer()
    return frozenset(state.accepts())  # type: ignore[no-untyped-call]


def _refusal(error: UnexpectedInput, position: int, text: str, accepted: frozenset[str]) -> Refusal:
    expected = tuple(dict.fromkeys(name for terminal, name in _NAMES.items() if terminal in accepted))
    if isinstance(error, UnexpectedToken) and position < len(text):
        word = error.token.value
        reason = f"{shown(word)} is not expected here"
        if _END in accepted:
            reason = f"{shown(word)} follows a complete expression; RocketMQ would ignore it and everything after it"
    elif position < len(text):
        word = text[position]
        reason = f"no symbol starts with {word!r}"
    else:
        word = ""
        reason = "there is no expression" if not text.strip(_BLANKS) else "the text ends too early"
    advice = _ADVICE.get(word.upper())
    return Refusal(position, f"{reason}: {advice}" if advice else reason, expected)


# -- the tree -----------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A node, its nesting depth, and whether another operator after it nests it deeper."""

    node: Node
    depth: int = 0
    is_open: bool = False

    @property
    def position(self) -> int:
        return self.node.position


def _part(node: Node, depth: int, *, is_open: bool = False) -> _Part:
    if depth > MAX_NESTING:
        raise Refusal(node.position, f"the expression nests deeper than {MAX_NESTING} levels")
    return _Part(node, depth, is_open)


def _operation(node: Node, left: _Part, *others: _Part) -> _Part:
    return _part(node, max(left.depth + left.is_open, *(other.depth for other in others), 0), is_open=True)


def _start(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


def _text(token: Token) -> str:
    return str(token)[1:-1].replace("''", "'")


@v_args(inline=True)
class _TreeBuilder(Transformer[Token, Any]):
    """Called for each rule as soon as the parser has seen it, so that no parse tree has to be traversed."""

    def terms(self, first: _Part, _operator: Token, second: _Part) -> list[_Part]:
        return [first, second]

    def more_terms(self, terms: list[_Part], _operator: Token, term: _Part) -> list[_Part]:
        terms.append(term)
        return terms

    def disjunction(self, terms: list[_Part]) -> _Part:
        node = syntax.Or(tuple(term.node for term in terms), position=terms[0].position)
        return _part(node, max(term.depth for term in terms))

    def conjunction(self, terms: list[_Part]) -> _Part:
        node = syntax.And(tuple(term.node for term in terms), position=terms[0].position)
        return _part(node, max(term.depth for term in terms))

    def equal(self, left: _Part, operator: Token, right: _Part) -> _Part:
        is_negated = operator.type == "NOT_EQUAL"
        return _operation(syntax.Equal(left.node, right.node, is_negated, position=left.position), left, right)

    def is_null(self, operand: _Part, *_keywords: Token, is_negated: bool = False) -> _Part:
        return _operation(syntax.IsNull(operand.node, is_negated, position=operand.position), operand)

    def is_not_null(self, operand: _Part, *_keywords: Token) -> _Part:
        return self.is_null(operand, is_negated=True)

    def compare(self, left: _Part, operator: Token, right: _Part) -> _Part:
        comparison = syntax.Comparison(operator.value)
        return _operation(syntax.Compare(left.node, comparison, right.node, position=left.position), left, right)

    def between(self, operand: _Part, *rest: Any, is_negated: bool = False) -> _Part:
        *_, low, _and, high = rest
        node = syntax.Between(operand.node, low.node, high.node, is_negated, position=operand.position)
        return _operation(node, operand, low, high)

    def not_between(self, operand: _Part, *rest: Any) -> _Part:
        return self.between(operand, *rest, is_negated=True)

    def is_in(self, operand: _Part, *rest: Any, is_negated: bool = False) -> _Part:
        return _operation(syntax.In(operand.node, tuple(rest[-1]), is_negated, position=operand.position), operand)

    def is_not_in(self, operand: _Part, *rest: Any) -> _Part:
        return self.is_in(operand, *rest, is_negated=True)

    def texts(self, text: Token) -> list[str]:
        return [_text(text)]

    def more_texts(self, texts: list[str], text: Token) -> list[str]:
        texts.append(_text(text))
        return texts

    def contains(self, operand: _Part, *rest: Token, is_negated: bool = False) -> _Part:
        *_, test, needle = rest
        node = syntax.Contains(
            operand.node, syntax.TextTest(test.type), _text(needle), is_negated, position=operand.position
        )
        return _operation(node, operand)

    def not_contains(self, operand: _Part, *rest: Token) -> _Part:
        return self.contains(operand, *rest, is_negated=True)

    def plus(self, operand: _Part) -> _Part:
        return _part(operand.node, operand.depth + 1)

    def minus(self, sign: Token, operand: _Part) -> _Part:
        return _part(syntax.Negative(operand.node, position=_start(sign)), operand.depth + 1)

    def negation(self, keyword: Token, operand: _Part) -> _Part:
        return _part(syntax.Not(operand.node, position=_start(keyword)), operand.depth + 1)

    def parentheses(self, inner: _Part) -> _Part:
        return _part(inner.node, inner.depth + 1)

    def string(self, token: Token) -> _Part:
        return _Part(syntax.StringLiteral(_text(token), position=_start(token)))

    def integer(self, token: Token) -> _Part:
        digits = token.value.rstrip("lL")
        # Python refuses to parse thousands of digits.
        if len(digits) > len(str(syntax.MAX_LONG)) or int(digits) > syntax.MAX_LONG:
            raise Refusal(_start(token), f"an integer may be at most {syntax.MAX_LONG}")
        return _Part(syntax.IntegerLiteral(int(digits), position=_start(token)))

    def double(self, token: Token) -> _Part:
        value = float(token.value)
        if value == 0 or isinf(value):
            raise Refusal(_start(token), f"a number with a decimal point or an exponent may not be {value:g}")
        return _Part(syntax.DoubleLiteral(value, position=_start(token)))

    def boolean(self, keyword: Token) -> _Part:
        return _Part(syntax.BooleanLiteral(keyword.type == "TRUE", position=_start(keyword)))

    def null(self, keyword: Token) -> _Part:
        return _Part(syntax.NullLiteral(position=_start(keyword)))

    def property(self, name: Token) -> _Part:
        return _Part(syntax.PropertyNode(str(name), position=_start(name)))


def _keyword(name: Token) -> Token:
    """The token of a name, or of a keyword if the name is one."""
    keyword = name.value.upper()
    return name.update(type=keyword) if keyword in _KEYWORDS else name


@cache
def _parser() -> Lark:
    return Lark(
        resources.files("mqdb.selector").joinpath("selector.lark").read_text(),  # this may run from a zip
        parser="lalr",
        lexer="basic",
        transformer=_TreeBuilder(),
        lexer_callbacks={"NAME": _keyword},
    )


def _tree(text: str) -> Node:
    part: _Part = _parser().parse(text)  # type: ignore[assignment]
    return part.node
