"""What RocketMQ refuses although it can be parsed: operands that an operator cannot have.

Source: ComparisonExpression (checkLessThanOperand, checkEqualOperand, createBetween, createInFilter), LogicExpression.
"""

from typing import Final

from mqdb.selector import syntax
from mqdb.selector.syntax import CONDITIONS, NUMBERS, Node, Refusal

#: Distinct texts, numbers and names in one selector; each is a parameter of the statement, which may have 65,535.
MAX_VALUES: Final = 30_000


def check(root: Node) -> None:
    """Raise Refusal for what RocketMQ refuses, and for more values than a statement can carry."""
    _check_condition(root)
    values: set[object] = set()
    for node in syntax.walk(root):
        _check_operands(node)
        values.add(_value(node))
        if len(values) > MAX_VALUES:
            raise Refusal(node.position, f"the expression holds more than {MAX_VALUES} different values and names")


def count_parameters(root: Node) -> int:
    """How many parameters the clause of a selector has, at most."""
    nodes = list(syntax.walk(root))
    # With a minus a number is another one.
    return len(set(map(_value, nodes))) + sum(isinstance(node, syntax.Negative) for node in nodes)


def _value(node: Node) -> object:
    match node:
        case syntax.Property(value) | syntax.StringLiteral(value) | syntax.Contains(_, _, value):
            return type(node), value
        case syntax.IntegerLiteral() | syntax.DoubleLiteral():
            return type(node), node.value
        case syntax.In(_, values):
            return values
        case _:
            return None


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
        case syntax.In(operand) if not isinstance(operand, syntax.Property):
            raise Refusal(operand.position, "only a property can be IN a list", ("a property name",))


def _check_condition(node: Node) -> None:
    if not isinstance(node, (*CONDITIONS, syntax.Property)):
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
    # Java compares a long and a double as doubles, Python exactly.
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
