"""Rejects expressions that can be parsed, but that RocketMQ does not allow or that are too expensive.

Source: ComparisonExpression (checkLessThanOperand, checkEqualOperand, createBetween, createInFilter), LogicExpression.
"""

from typing import Final

from mqdb.selector import syntax
from mqdb.selector.syntax import CONDITIONS, NUMBERS, Node, Refusal

#: Maximum number of names, values and operators in a selector, or in all selectors that judge the retries of a group.
#: Each takes up to about 500 characters of SQL, and PostgreSQL plans them all in less than a second, for which the
#: first message waits.
MAX_PARTS: Final = 1_000


def check(root: Node) -> None:
    """Raise Refusal for operands that RocketMQ refuses, and for a selector with more than MAX_PARTS."""
    _check_condition(root)
    for number, node in enumerate(syntax.walk(root), start=1):
        _check_operands(node)
        if number > MAX_PARTS:
            reason = f"the expression has more than {MAX_PARTS:,} names, values and operators"
            raise Refusal(node.position, f"{reason}; write alternatives of one property as a IN ('x', 'y')")


def count_parts(root: Node) -> int:
    """The number of names, values and operators. The texts of one IN count as one value."""
    return sum(1 for _ in syntax.walk(root))


def _check_operands(node: Node) -> None:
    match node:
        case syntax.Or(terms) | syntax.And(terms):
            for term in terms:
                _check_condition(term)
        case syntax.Not(operand):
            _check_condition(operand)
        case syntax.Equal(left, right):
            _check_equal(left, right)
        case syntax.Compare(left, _, right):
            _check_numbers(left, right)
        case syntax.Between(operand, low, high, is_negated):
            _check_numbers(operand, low, high)
            if not is_negated:
                _check_bounds(low, high)
        case syntax.In(operand) if not isinstance(operand, syntax.PropertyNode):
            raise Refusal(operand.position, "only a property can be IN a list", ("a property name",))


def _check_condition(node: Node) -> None:
    if not isinstance(node, (*CONDITIONS, syntax.PropertyNode)):
        raise Refusal(node.position, f"{_called(node)} is neither true nor false", ("a condition",))


def _check_equal(left: Node, right: Node) -> None:
    for operand in (left, right):
        if isinstance(operand, syntax.NullLiteral):
            raise Refusal(operand.position, "nothing equals NULL", ("IS NULL", "IS NOT NULL"))
    if isinstance(left, syntax.BooleanLiteral) and isinstance(right, (syntax.StringLiteral, *NUMBERS)):
        raise Refusal(left.position, f"TRUE and FALSE cannot be compared with {_called(right)}")


def _check_numbers(*operands: Node) -> None:
    for operand in operands:
        if isinstance(operand, (syntax.StringLiteral, *CONDITIONS)):
            raise Refusal(
                operand.position, f"{_called(operand)} is neither less nor greater", ("a property name", "a number")
            )


def _check_bounds(low: Node, high: Node) -> None:
    # Java compares a long with a double by converting both to double, Python exactly.
    match low, high:
        case (syntax.IntegerLiteral(least), syntax.IntegerLiteral(most)):
            is_empty = most < least
        case (
            syntax.IntegerLiteral() | syntax.DoubleLiteral(),
            syntax.IntegerLiteral() | syntax.DoubleLiteral(),
        ):
            is_empty = float(high.value) < float(low.value)
        case _:
            is_empty = False
    if is_empty:
        raise Refusal(low.position, "the lower bound is above the upper one")


def _called(node: Node) -> str:
    match node:
        case syntax.StringLiteral():
            return "a text"
        case syntax.IntegerLiteral() | syntax.DoubleLiteral():
            return "a number"
        case syntax.BooleanLiteral():
            return "TRUE or FALSE"
        case syntax.NullLiteral():
            return "NULL"
        case syntax.Negative():
            return "a value with a minus"
        case _:
            return "a condition"
