"""Builds the clause of a selector on the properties of a message from its syntax tree.

Each node becomes an operand, built from the operands of its children. Names and values are bound, each once, so that a
selector is always the same statement with the same parameters. RocketMQ: the evaluate methods of its expressions.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, all_, any_, false, func, literal_column, not_

from mqdb.selector import syntax, verdict
from mqdb.selector.comparison import between, compare, equal, is_null, not_between
from mqdb.selector.flat import flat
from mqdb.selector.operands import NumberOperand, NumberType, Operand, Parameters, TextOperand, condition, constant
from mqdb.selector.syntax import Node, TextTest
from mqdb.selector.verdict import Verdict


def clause(
    root: Node, properties: ColumnElement[Any], columns: Mapping[str, ColumnElement[Any]]
) -> ColumnElement[bool]:
    """TRUE for the messages that RocketMQ would deliver; FALSE or NULL for all others, and for an error."""
    return flat(condition(syntax.fold(root, partial(_operand, Parameters(properties, columns)))).true)


def _operand(parameters: Parameters, node: Node, operands: list[Operand]) -> Operand:
    match node:
        case syntax.PropertyNode(name):
            return parameters.property(name)
        case syntax.StringLiteral(text):
            return TextOperand(parameters.text(text), text)
        case syntax.IntegerLiteral(number):
            return parameters.integer(number)
        case syntax.DoubleLiteral(number):
            return parameters.number(number, NumberType.DOUBLE)
        case syntax.Negative():
            return _negative(parameters, operands[0])
        case _:
            return _condition(parameters, node, operands)


def _condition(parameters: Parameters, node: Node, operands: list[Operand]) -> Verdict:
    match node:
        case syntax.BooleanLiteral(truth):
            return constant(truth)
        case syntax.Or():
            return verdict.any_of([condition(each) for each in operands])
        case syntax.And():
            return verdict.all_of([condition(each) for each in operands])
        case syntax.Not():
            return verdict.negated(condition(operands[0]))
        case syntax.Equal(_, _, is_negated):
            return _negated_if(is_negated, equal(*operands))
        case syntax.IsNull(_, is_negated):
            return _negated_if(is_negated, is_null(*operands))
        case syntax.Compare(_, comparison, _):
            return compare(operands[0], comparison, operands[1])
        case syntax.Between(_, _, _, is_negated):
            return not_between(*operands) if is_negated else between(*operands)
        case syntax.In(_, texts, is_negated):
            return _negated_if(is_negated, _is_in(operands[0], parameters.texts(texts)))
        case syntax.Contains(_, test, needle, is_negated):
            return _contains(parameters, operands[0], test, needle, is_negated)
        case _:  # NULL
            return verdict.NULL


def _negated_if(is_negated: bool, found: Verdict) -> Verdict:
    return verdict.negated(found) if is_negated else found


_NULL_OR_ERROR: Final = verdict.unary_table("NNNE")
_FALSE_OR_ERROR: Final = verdict.unary_table("FFFE")


def _negative(parameters: Parameters, operand: Operand) -> Operand:
    if isinstance(operand, NumberOperand):
        return parameters.number(-operand.value, operand.type)
    if isinstance(operand, Verdict) and operand.plain is None:
        return verdict.looked_up(_NULL_OR_ERROR, operand)
    return verdict.NULL


def _is_in(operand: Operand, texts: ColumnElement[Any]) -> Verdict:
    assert isinstance(operand, TextOperand)
    return verdict.plain(operand.sql == any_(texts), false=operand.sql != all_(texts))


def _contains(parameters: Parameters, operand: Operand, test: TextTest, needle: str, is_negated: bool) -> Verdict:
    """The verdict of a text test.

    The verdict is FALSE if the needle is empty or the property is missing, even with NOT.
    """
    if not needle or isinstance(operand, NumberOperand):
        return verdict.FALSE
    if isinstance(operand, Verdict):
        return verdict.looked_up(_FALSE_OR_ERROR, operand)
    found = _TEXT_TESTS[test](operand.sql, parameters.text(needle))
    if is_negated:
        found = not_(found)
    return verdict.plain(func.coalesce(found, false()), true=found)


def _is_part(text: ColumnElement[str], needle: ColumnElement[str]) -> ColumnElement[bool]:
    return func.strpos(text, needle) > literal_column("0")


def _is_end(text: ColumnElement[str], needle: ColumnElement[str]) -> ColumnElement[bool]:
    return func.right(text, func.length(needle)) == needle


_TEXT_TESTS: Final[dict[TextTest, Callable[[ColumnElement[str], ColumnElement[str]], ColumnElement[bool]]]] = {
    TextTest.CONTAINS: _is_part,
    TextTest.STARTSWITH: func.starts_with,
    TextTest.ENDSWITH: _is_end,
}
