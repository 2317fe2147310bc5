"""The comparisons `=` and `<>`, `<` and similar, and BETWEEN.

The two sides are treated differently: null on the left makes the result null, while null on the right of `=` makes it
FALSE, or TRUE if both are null. The types of both sides decide how a text is parsed; a text that cannot be parsed is an
error.
RocketMQ: ComparisonExpression.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, Text, and_, case, cast, false, func, literal_column, or_, tuple_

from mqdb.selector import verdict
from mqdb.selector.operands import (
    NumberOperand,
    NumberType,
    Operand,
    TextOperand,
    constant,
    presence,
    truth,
)
from mqdb.selector.syntax import Comparison
from mqdb.selector.verdict import Verdict

# Truth tables as in verdict.py. If a side is a property, its state is whether the property exists, TRUE or FALSE.
_CONDITIONS_EQUAL: Final = verdict.table("TFFE FTFE NNTE EEEE")
_CONDITION_EQUALS_TEXT: Final = verdict.table("EFEE EFEE NTNN EEEE")
_CONDITION_EQUALS_NUMBER: Final = verdict.unary_table("FFNE")
_NUMBER_EQUALS_CONDITION: Final = verdict.unary_table("FFFE")
_IS_NULL: Final = verdict.unary_table("FFTE")
_TEXT_COMPARED_TO_NULL: Final = verdict.table("NNNE NNNN NNNN EEEE")


# -- equality -----------------------------------------------------------------------------------


def equal(left: Operand, right: Operand) -> Verdict:
    """`left = right`; `<>` is its negation."""
    if isinstance(left, TextOperand):
        if isinstance(right, TextOperand):
            return _equal_texts(left, right)
        if isinstance(right, NumberOperand):
            return _text_equals_number(left, right)
        return _equal_conditions(truth(left), right)
    if isinstance(left, NumberOperand):
        if isinstance(right, TextOperand):
            return _number_equals_text(left, right)
        if isinstance(right, NumberOperand):
            return constant(_order_of(left, right) == 0)
        return verdict.looked_up(_NUMBER_EQUALS_CONDITION, right)
    if isinstance(right, TextOperand):
        return verdict.looked_up(_CONDITION_EQUALS_TEXT, left, presence(right), may_fail=True)
    if isinstance(right, NumberOperand):
        return verdict.looked_up(_CONDITION_EQUALS_NUMBER, left)
    return _equal_conditions(left, right)


def is_null(operand: Operand) -> Verdict:
    """`operand IS NULL`: an error if the operand is an error, otherwise never null."""
    if isinstance(operand, NumberOperand):
        return verdict.FALSE
    if isinstance(operand, TextOperand):
        return verdict.plain(operand.is_missing, false=operand.is_there) if operand.is_property else verdict.FALSE
    if operand.plain is None:
        return verdict.looked_up(_IS_NULL, operand)
    return verdict.plain(("(", operand.plain, ") IS NULL"), false=("(", operand.plain, ") IS NOT NULL"))


def _equal_texts(left: TextOperand, right: TextOperand) -> Verdict:
    if left.literal is not None and right.literal is not None:
        return constant(left.literal == right.literal)
    same, different = left.sql == right.sql, left.sql != right.sql
    if right.literal is not None:
        return verdict.plain(same, false=different)
    if left.literal is not None:
        return verdict.plain(func.coalesce(same, false()), true=same)
    return verdict.plain(case((right.is_missing, left.is_missing), else_=same))


def _text_equals_number(text: TextOperand, number: NumberOperand) -> Verdict:
    found, error = text.read_as(number.type)
    return verdict.guarded(found == number.sql, error, false=found != number.sql)


def _number_equals_text(number: NumberOperand, text: TextOperand) -> Verdict:
    found = _text_equals_number(text, number)
    if found.error is None or not text.is_property:
        return found
    condition = ("CASE WHEN ", text.is_missing, " THEN false ELSE ", found.true, " END")
    is_false = ("(", text.is_missing, " OR ", found.false, ")")
    return verdict.guarded(condition, found.error, true=found.true, false=is_false)


def _equal_conditions(left: Verdict, right: Verdict) -> Verdict:
    if right is verdict.TRUE:
        return left
    if right is verdict.FALSE:
        return verdict.negated(left)
    return verdict.looked_up(_CONDITIONS_EQUAL, left, right)


# -- order --------------------------------------------------------------------------------------

_Order = Callable[[Any, Any], ColumnElement[bool]]

_ORDERS: Final[dict[Comparison, _Order]] = {
    Comparison.LESS: operator.lt,
    Comparison.LESS_OR_EQUAL: operator.le,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_OR_EQUAL: operator.ge,
}

_OPPOSITES: Final = {
    Comparison.LESS: Comparison.GREATER_OR_EQUAL,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER,
    Comparison.GREATER: Comparison.LESS_OR_EQUAL,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS,
}

#: The comparisons with exchanged sides.
_MIRRORED: Final = {
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER_OR_EQUAL,
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS_OR_EQUAL,
}


def compare(left: Operand, comparison: Comparison, right: Operand) -> Verdict:
    """`left < right` and similar comparisons.

    Conditions were rejected earlier, so a verdict here is null or an error.
    """
    if isinstance(left, Verdict):
        return left
    if isinstance(right, Verdict):
        if isinstance(left, NumberOperand):
            return right
        return verdict.looked_up(_TEXT_COMPARED_TO_NULL, presence(left), right)
    if isinstance(left, TextOperand):
        if isinstance(right, TextOperand):
            return _compare_texts(left, comparison, right)
        found, error = left.read_as(right.type)
        return _compared(found, comparison, right.sql, error)
    if isinstance(right, TextOperand):
        return compare(right, _MIRRORED[comparison], left)
    return constant(_holds(comparison, _order_of(left, right)))


def between(operand: Operand, low: Operand, high: Operand) -> Verdict:
    """`operand BETWEEN low AND high`, including the bounds."""
    if isinstance(operand, Verdict):  # null or an error, as in the first comparison
        return operand
    in_range = _in_range(operand, low, high)
    return in_range or verdict.all_of(
        [compare(operand, Comparison.GREATER_OR_EQUAL, low), compare(operand, Comparison.LESS_OR_EQUAL, high)]
    )


def not_between(operand: Operand, low: Operand, high: Operand) -> Verdict:
    """`operand NOT BETWEEN low AND high`, which stops at a TRUE where BETWEEN stops at a FALSE."""
    if isinstance(operand, Verdict):
        return operand
    in_range = _in_range(operand, low, high)
    if in_range:
        return verdict.negated(in_range)
    return verdict.any_of([compare(operand, Comparison.LESS, low), compare(operand, Comparison.GREATER, high)])


def _in_range(operand: Operand, low: Operand, high: Operand) -> Verdict | None:
    """The common case in simple SQL: a text between two numbers of the same type."""
    if not (isinstance(operand, TextOperand) and isinstance(low, NumberOperand) and isinstance(high, NumberOperand)):
        return None
    if low.type is not high.type:
        return None
    found, error = operand.read_as(low.type)
    inside = found.between(low.sql, high.sql)
    return verdict.guarded(inside, error, false=~inside)


def _compare_texts(left: TextOperand, comparison: Comparison, right: TextOperand) -> Verdict:
    one, other = left.read_as(NumberType.DOUBLE), right.read_as(NumberType.DOUBLE)
    # In both, NaN is the greatest value, and equal to itself.
    first, second = _sort_key(one.number), _sort_key(other.number)
    error = or_(and_(one.error, right.is_there), and_(left.is_there, other.error))
    return _compared(first, comparison, second, error)


def _sort_key(number: ColumnElement[Any]) -> ColumnElement[Any]:
    # In Java, -0.0 comes before 0.0; PostgreSQL considers them equal.
    return tuple_(number, cast(number, Text) != literal_column("'-0'"))


def _compared(
    left: ColumnElement[Any], comparison: Comparison, right: ColumnElement[Any], error: ColumnElement[bool]
) -> Verdict:
    order, opposite = _ORDERS[comparison], _ORDERS[_OPPOSITES[comparison]]
    return verdict.guarded(order(left, right), error, false=opposite(left, right))


def _order_of(left: NumberOperand, right: NumberOperand) -> int:
    """Java's compare: returns -1, 0 or 1.

    A long and a double are compared as doubles, which Python would compare exactly.
    """
    one, other = left.value, right.value
    if NumberType.DOUBLE in (left.type, right.type):
        one, other = float(one), float(other)
    return (one > other) - (one < other)


def _holds(comparison: Comparison, order: int) -> bool:
    return bool(_ORDERS[comparison](order, 0))
