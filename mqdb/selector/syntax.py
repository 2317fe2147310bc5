"""The syntax tree of a selector, which the parser builds from RocketMQ's SQL92, without its meaning.

Parentheses and unary plus create no nodes. A chain of AND or OR is a single node, however long it is. Each node has its
position in the text, for errors. Two nodes are equal if their contents are equal, regardless of their positions.
RocketMQ: org.apache.rocketmq.filter.expression.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")

#: Integer literals up to this value are ints, larger ones longs; the suffix L has no effect.
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1


class Refusal(Exception):
    """The reason why a text is not a selector. `mqdb.selector.selector` converts it to a SelectorSyntaxError."""

    def __init__(self, position: int, reason: str, expected: tuple[str, ...] = ()) -> None:
        super().__init__(position, reason, expected)
        self.position = position
        self.reason = reason
        self.expected = expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Part of a selector. `position` is that of its first character, without the parentheses around it."""

    position: int = field(default=0, compare=False, repr=False)


# -- operands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PropertyNode(Node):
    """The value of a property of the message: a text, or null if it is missing."""

    name: str


@dataclass(frozen=True, slots=True)
class StringLiteral(Node):
    """A text, without its quotes."""

    value: str


@dataclass(frozen=True, slots=True)
class IntegerLiteral(Node):
    """An int, or a long above `MAX_INT`."""

    value: int


@dataclass(frozen=True, slots=True)
class DoubleLiteral(Node):
    """A double."""

    value: float


@dataclass(frozen=True, slots=True)
class BooleanLiteral(Node):
    """TRUE or FALSE."""

    value: bool


@dataclass(frozen=True, slots=True)
class NullLiteral(Node):
    """NULL."""


@dataclass(frozen=True, slots=True)
class Negative(Node):
    """Unary minus: an operation, even on a literal."""

    operand: Node


# -- conditions ---------------------------------------------------------------------------------


class Comparison(StrEnum):
    """Operators that compare numbers."""

    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


class TextTest(StrEnum):
    """Operators that search for a text within a text."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Or(Node):
    """A disjunction of two or more terms, evaluated from left to right."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class And(Node):
    """A conjunction of two or more terms, evaluated from left to right."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not(Node):
    """NOT, which binds tighter than any comparison."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Equal(Node):
    """`=`, or `<>` if negated. The sides are treated differently: see `mqdb.selector.clause`."""

    left: Node
    right: Node
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """IS NULL, or IS NOT NULL."""

    operand: Node
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """A comparison of numbers."""

    left: Node
    operator: Comparison
    right: Node


@dataclass(frozen=True, slots=True)
class Between(Node):
    """BETWEEN, including the bounds, or NOT BETWEEN."""

    operand: Node
    low: Node
    high: Node
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class In(Node):
    """IN, or NOT IN."""

    operand: Node
    values: tuple[str, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Contains(Node):
    """CONTAINS, STARTSWITH, ENDSWITH, or NOT with one of them."""

    operand: Node
    test: TextTest
    needle: str
    is_negated: bool = False


#: Nodes that have a truth value. A property has no truth value, but may be used as a condition.
CONDITIONS: Final = (BooleanLiteral, NullLiteral, Or, And, Not, Equal, IsNull, Compare, Between, In, Contains)

#: Number literals; a literal with a minus before it is an operation.
NUMBERS: Final = (IntegerLiteral, DoubleLiteral)


def children(node: Node) -> tuple[Node, ...]:
    """The children of a node, from left to right."""
    match node:
        case Or(terms) | And(terms):
            return terms
        case Equal(left, right) | Compare(left, _, right):
            return left, right
        case Between(operand, low, high):
            return operand, low, high
        case Negative(operand) | Not(operand) | IsNull(operand) | In(operand) | Contains(operand):
            return (operand,)
        case _:
            return ()


def walk(root: Node) -> Iterator[Node]:
    """Every node of a tree, each before its children, from left to right."""
    # Without recursion, like all traversals of trees: Python allows 1,000 levels, some of which are already in use.
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


def fold(root: Node, combine: Callable[[Node, list[T]], T]) -> T:
    """Combine a tree from the leaves up: `combine` is called with each node and the results for its children."""
    results: list[T] = []
    for node in reversed(list(walk(root))):
        results.append(combine(node, [results.pop() for _ in children(node)]))
    return results.pop()
