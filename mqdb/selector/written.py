"""A syntax tree in written form: a node on one line, or the whole tree line by line."""

from collections.abc import Iterator
from typing import Final

from mqdb.selector.syntax import (
    MAX_INT,
    And,
    Between,
    BooleanLiteral,
    Compare,
    Contains,
    DoubleLiteral,
    Equal,
    In,
    IntegerLiteral,
    IsNull,
    Negative,
    Node,
    Not,
    NullLiteral,
    Or,
    PropertyNode,
    StringLiteral,
    children,
)

_DEPTH: Final = 4
_TERMS: Final = 3


def tree_lines(root: Node) -> Iterator[tuple[int, str]]:
    """Depth and label of each node, each before its children."""
    waiting = [(0, root)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, label(node)
        waiting.extend((depth + 1, child) for child in reversed(children(node)))


def label(node: Node) -> str:
    """The label of a node, without its children."""
    match node:
        case PropertyNode(name):
            return f"property {name}"
        case StringLiteral(value):
            return f"text {quoted(value)}"
        case IntegerLiteral(value):
            return f"{'int' if value <= MAX_INT else 'long'} {value}"
        case DoubleLiteral(value):
            return f"double {value!r}"
        case Negative():
            return "minus"
        case BooleanLiteral() | NullLiteral():
            return written(node)
        case Or() | And() | Not():
            return type(node).__name__.upper()
        case _:
            return _operator(node)


def written(node: Node, depth: int = _DEPTH) -> str:
    """A node as an expression, with any parentheses that help; parts that are too deep or long are `...`."""
    if depth == 0:
        return "..."
    match node:
        case PropertyNode(name):
            return name
        case StringLiteral(value):
            return quoted(value)
        case IntegerLiteral(value) | DoubleLiteral(value):
            return repr(value)
        case BooleanLiteral(value):
            return str(value).upper()
        case NullLiteral():
            return "NULL"
        case Negative(operand):
            return f"-{_part(operand, depth)}"
        case Not(operand):
            return f"NOT {_part(operand, depth)}"
        case Or(terms) | And(terms):
            shown = [_part(term, depth) for term in terms[:_TERMS]] + ["..."] * (len(terms) > _TERMS)
            return f" {label(node)} ".join(shown)
        case Equal(left, right) | Compare(left, _, right):
            return f"{_part(left, depth)} {_operator(node)} {_part(right, depth)}"
        case Between(operand, low, high):
            bounds = f"{_part(low, depth)} AND {_part(high, depth)}"
            return f"{_part(operand, depth)} {_operator(node)} {bounds}"
        case IsNull(operand) | In(operand) | Contains(operand):
            return f"{_part(operand, depth)} {_operator(node)}"
        case _:
            raise TypeError(f"no node of a selector: {node!r}")


def quoted(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def _part(node: Node, depth: int) -> str:
    text = written(node, depth - 1)
    is_one_word = not isinstance(node, (Or, And, Equal, Compare, Between, IsNull, In, Contains))
    return text if is_one_word or text == "..." else f"({text})"


def _operator(node: Node) -> str:
    match node:
        case Equal(is_negated=is_negated):
            return "<>" if is_negated else "="
        case IsNull(is_negated=is_negated):
            return "IS NOT NULL" if is_negated else "IS NULL"
        case Compare(operator=operator):
            return operator.value
        case Between(is_negated=is_negated):
            return f"{_not(is_negated)}BETWEEN"
        case In(values=values, is_negated=is_negated):
            shown = [quoted(value) for value in values[:_TERMS]] + ["..."] * (len(values) > _TERMS)
            return f"{_not(is_negated)}IN ({', '.join(shown)})"
        case Contains(test=test, needle=needle, is_negated=is_negated):
            return f"{_not(is_negated)}{test.value} {quoted(needle)}"
        case _:
            raise TypeError(f"no node of a selector: {node!r}")


def _not(is_negated: bool) -> str:
    return "NOT " if is_negated else ""
