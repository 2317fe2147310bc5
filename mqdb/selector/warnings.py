"""Warnings: legal expressions that do not mean the obvious, or can never match.

Each rule examines a node and its children. No rule changes the meaning of an expression, which is the one in RocketMQ's
broker.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from mqdb.selector.syntax import (
    CONDITIONS,
    MAX_INT,
    NUMBERS,
    And,
    Between,
    BooleanLiteral,
    Compare,
    Contains,
    DoubleLiteral,
    Equal,
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
    walk,
)
from mqdb.selector.written import written

_AND_BETWEEN: Final = "write AND between two conditions"

_LITERALS: Final = (StringLiteral, BooleanLiteral, NullLiteral, *NUMBERS)


class SelectorWarning(NamedTuple):
    """A warning: `part` is the part of the expression as one might write it, and `reason` a sentence about it."""

    position: int
    part: str
    reason: str


def warnings_of(root: Node) -> list[SelectorWarning]:
    """The warnings about an expression, from left to right."""
    found = [_about(root, reason) for reason in (*_constant(root), *_no_condition(root))]
    for node in walk(root):
        found += [_about(node, reason) for rule in _RULES for reason in rule(node)]
        if isinstance(node, Or | And):
            found += [_about(term, reason) for term in node.terms for reason in _no_condition(term)]
    return sorted(found, key=lambda warning: warning.position)


def _about(node: Node, reason: str) -> SelectorWarning:
    return SelectorWarning(node.position, written(node), reason)


# -- truth values -------------------------------------------------------------------------------


def _constant(root: Node) -> Iterator[str]:
    match root:
        case BooleanLiteral(True):
            yield "matches every message"
        case BooleanLiteral() | NullLiteral():
            yield "matches no message"


def _no_condition(term: Node) -> Iterator[str]:
    match term:
        case PropertyNode(name):
            yield f"a bare property is never true, whatever its text; write {name} = TRUE, or {name} IS NOT NULL"
        case Not(PropertyNode(name)):
            yield f"is true whatever the text of {name} is, if the property exists; write NOT ({name} = TRUE)"


def _not_binds_tighter(node: Node) -> Iterator[str]:
    match node:
        case Equal(Not(operand) as left, right):
            meant = written(Equal(operand, right, node.is_negated))
            yield f"NOT binds tighter, so {written(left)} is compared; to negate the comparison, write NOT ({meant})"
        case IsNull(Not(operand) as left):
            meant = written(IsNull(operand, not node.is_negated))
            yield f"NOT binds tighter, so {written(left)} is tested for NULL; to negate the test, write {meant}"
        case Contains(Not(operand)):
            meant = written(Contains(operand, node.test, node.needle, node.is_negated))
            yield f"NOT binds tighter, and a truth value contains nothing: never true; write NOT ({meant})"


def _truth_value_as_a_side(node: Node) -> Iterator[str]:
    match node:
        case Equal(left, right) if not _is_condition(left) and _is_condition(right, but=(BooleanLiteral, NullLiteral)):
            yield f"compares {written(left)} with the truth value of {written(right)}; {_AND_BETWEEN}"
        case Equal(left, right) if _is_condition(left, but=(BooleanLiteral, NullLiteral, Not)):
            if not _is_condition(right):
                yield f"compares the truth value of {written(left)} with {written(right)}; {_AND_BETWEEN}"


def _boolean_literal(node: Node) -> Iterator[str]:
    match node:
        case Equal(PropertyNode(name), BooleanLiteral(value)) if value is node.is_negated:
            yield f"is true for every text of {name} except 'true', so also for '0', 'yes' and 'no'"
        case Equal(BooleanLiteral(), PropertyNode(name)) if node.is_negated:
            yield f"is an error if {name} exists, and true if {name} is missing; write the property first"
        case Equal(BooleanLiteral() as literal, PropertyNode(name)):
            meant = written(Equal(PropertyNode(name), literal))
            yield f"is an error if {name} exists, and false if {name} is missing: never true; write {meant}"


def _two_literals(node: Node) -> Iterator[str]:
    if isinstance(node, (Equal, Compare, IsNull)) and all(_is_literal(side) for side in children(node)):
        yield "compares literals, so it is the same for every message"


# -- numbers ------------------------------------------------------------------------------------


def _whole_number(node: Node) -> Iterator[str]:
    match node:
        case Equal(PropertyNode(name), side) | Equal(side, PropertyNode(name)):
            sides = [side]
        case Compare(PropertyNode(name), _, side) | Compare(side, _, PropertyNode(name)):
            sides = [side]
        case Between(PropertyNode(name), low, high):
            sides = [low, high]
        case _:
            return
    whole = [number for side in sides if isinstance(number := _magnitude(side), IntegerLiteral)]
    if whole:
        kind, most = ("an int", MAX_INT) if whole[0].value <= MAX_INT else ("a long", 2**63 - 1)
        values = [value for side in sides if isinstance(value := _number(side), int)]
        remedies = [written(DoubleLiteral(float(value))) for value in values if value]
        if 0 in values:
            nearly = "NOT BETWEEN" if isinstance(node, Equal) and node.is_negated else "BETWEEN"
            equal = f"{name} {nearly} -1e-300 AND 1e-300"
            remedies.append(f"{equal if isinstance(node, Equal) else '1e-300 or -1e-300'} (0.0 is refused)")
        remedy = f"for decimals write {' and '.join(remedies)}"
        yield f"reads {name} as {kind}: '5.5', ' 5', 'abc' and numbers above {most} are errors; {remedy}"


def _two_properties(node: Node) -> Iterator[str]:
    match node:
        case (
            Compare(PropertyNode(), _, PropertyNode())
            | Between(PropertyNode(), PropertyNode(), _)
            | Between(PropertyNode(), _, PropertyNode())
        ):
            yield "compares doubles: a text that is not a number is an error, and numbers above 2^53 are rounded"
        case Equal(PropertyNode(left), PropertyNode(right)) if node.is_negated:
            yield f"compares texts, so '1' <> '1.0'; it is also true if {right} is missing and {left} is not"
        case Equal(PropertyNode(), PropertyNode()):
            yield "compares texts, so '1' is not '1.0'; it is also true if both are missing"


def _minus_property(node: Node) -> Iterator[str]:
    if isinstance(node, Negative) and isinstance(_magnitude(node), PropertyNode):
        yield "is null, because a property is a text: < and > with it are never true, and IS NULL and = with a null are"


def _empty_range(node: Node) -> Iterator[str]:
    match node:
        case Between(_, low, high):
            lowest, highest = _number(low), _number(high)
            if lowest is not None and highest is not None and lowest > highest:
                verdict = "true for every number" if node.is_negated else "never true"
                yield f"the first bound is the higher one: {verdict}"


# -- texts and missing properties ---------------------------------------------------------------


def _contains(node: Node) -> Iterator[str]:
    match node:
        case Contains(needle=""):
            yield "an empty text is never contained: never true, with or without NOT"
        case Contains(Negative() | BooleanLiteral() | NullLiteral() | IntegerLiteral() | DoubleLiteral()):
            yield "only a text contains something: never true, with or without NOT"
        case Not(Contains(PropertyNode(name)) as test):
            meant = written(Contains(test.operand, test.test, test.needle, not test.is_negated))
            yield f"is true if {name} is missing; {meant} is not"


def _literal_first(node: Node) -> Iterator[str]:
    match node:
        case Equal(left, PropertyNode(name), is_negated=True) if isinstance(
            _magnitude(left), (StringLiteral, *NUMBERS)
        ):
            meant = written(Equal(PropertyNode(name), left, is_negated=True))
            yield f"is true if {name} is missing; {meant} is not"


# -- order --------------------------------------------------------------------------------------


def _error_first(node: Node) -> Iterator[str]:
    if isinstance(node, Or):
        can_fail = [any(map(_can_fail, walk(term))) for term in node.terms]
        first = can_fail.index(True) if True in can_fail else len(can_fail)
        if not all(can_fail[first:]):
            sure = written(node.terms[can_fail.index(False, first)])
            yield f"an error in {written(node.terms[first])} spoils the whole expression; write {sure} before it"


def _can_fail(node: Node) -> bool:
    """Whether some text of a property can make the node an error."""
    match node:
        case Compare() | Between():
            return any(isinstance(side, PropertyNode) for side in children(node))
        case Equal(left, PropertyNode() | StringLiteral()) if _is_condition(left):
            return True
        case Equal(PropertyNode(), side) | Equal(side, PropertyNode()):
            return isinstance(_magnitude(side), NUMBERS)
        case _:
            return False


_RULES: Final[tuple[Callable[[Node], Iterator[str]], ...]] = (
    _not_binds_tighter,
    _truth_value_as_a_side,
    _boolean_literal,
    _two_literals,
    _whole_number,
    _two_properties,
    _minus_property,
    _empty_range,
    _contains,
    _literal_first,
    _error_first,
)


def _is_condition(node: Node, but: tuple[type[Node], ...] = ()) -> bool:
    return isinstance(node, CONDITIONS) and not isinstance(node, but)


def _is_literal(node: Node) -> bool:
    return isinstance(_magnitude(node), NUMBERS) or isinstance(node, _LITERALS)


def _magnitude(node: Node) -> Node:
    """The node without its leading minus signs."""
    while isinstance(node, Negative):
        node = node.operand
    return node


def _number(node: Node) -> int | float | None:
    """The value of a number, with its signs; None for anything else."""
    sign = 1
    while isinstance(node, Negative):
        node, sign = node.operand, -sign
    return sign * node.value if isinstance(node, IntegerLiteral | DoubleLiteral) else None
