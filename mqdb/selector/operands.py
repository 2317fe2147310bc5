"""The operands of a selector: texts, numbers and conditions, and the parameters of the statement.

Only literals are numbers. A property is a text, or null if it is missing. A text that is compared with a number is
parsed as a number. RocketMQ: PropertyExpression, ConstantExpression, UnaryExpression.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Text,
    and_,
    bindparam,
    collate,
    func,
    literal_column,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from mqdb.selector import verdict
from mqdb.selector.syntax import MAX_INT
from mqdb.selector.verdict import Verdict


class NumberType(Enum):
    """Java's number types, with the functions that parse a text like Java."""

    INT = "java_int"
    LONG = "java_long"
    DOUBLE = "java_double"

    @property
    def sql_type(self) -> TypeEngine[Any]:
        return _SQL_TYPES[self]

    def read(self, text: ColumnElement[str]) -> ColumnElement[Any]:
        """The number in a text; NULL if Java would throw."""
        number: ColumnElement[Any] = getattr(func.mqdb, self.value)(text, type_=self.sql_type)
        return number


_SQL_TYPES: dict[NumberType, TypeEngine[Any]] = {
    NumberType.INT: Integer(),
    NumberType.LONG: BigInteger(),
    NumberType.DOUBLE: Double(),
}


class NumberReading(NamedTuple):
    """A text parsed as a number.

    The number is NULL if the text is missing, or if it cannot be parsed, which is an error.
    """

    number: ColumnElement[Any]
    error: ColumnElement[bool]


class TextOperand:
    """A property or a text literal."""

    def __init__(self, sql: ColumnElement[str], literal: str | None = None) -> None:
        self.sql = sql
        self.literal = literal
        self.is_property = literal is None
        self._readings: dict[NumberType, NumberReading] = {}

    @cached_property
    def is_there(self) -> ColumnElement[bool]:
        """Whether the property exists; always the same object, as with `read_as`."""
        return self.sql.is_not(None)

    @cached_property
    def is_missing(self) -> ColumnElement[bool]:
        """The negation of `is_there`."""
        return self.sql.is_(None)

    def read_as(self, type_: NumberType) -> NumberReading:
        """The text parsed as a number; always the same object, so that errors that occur together can be recognized."""
        if type_ not in self._readings:
            number = type_.read(self.sql)
            is_unreadable = number.is_(None)
            error = and_(self.is_there, is_unreadable) if self.is_property else is_unreadable
            self._readings[type_] = NumberReading(number, error)
        return self._readings[type_]


@dataclass(frozen=True, slots=True)
class NumberOperand:
    """A number literal, possibly with a minus, which keeps the type: -2147483648 is a long."""

    value: int | float
    type: NumberType
    sql: ColumnElement[Any]


#: A verdict also represents a minus before anything but a number: null, or an error if the operand is an error.
Operand = TextOperand | NumberOperand | Verdict


class Parameters:
    """The names and values of one selector, each bound once."""

    def __init__(self, properties: ColumnElement[Any], columns: Mapping[str, ColumnElement[Any]]) -> None:
        self._named = properties.op("->>", return_type=Text())
        self._bound: dict[object, ColumnElement[Any]] = {}
        self._properties = {name: TextOperand(column) for name, column in columns.items()}

    def property(self, name: str) -> TextOperand:
        if name not in self._properties:
            self._properties[name] = TextOperand(self._named(self.text(name)))
        return self._properties[name]

    def text(self, value: str) -> ColumnElement[str]:
        return self._bind(value, value, Text())

    def texts(self, values: tuple[str, ...]) -> ColumnElement[Any]:
        return self._bind(values, list(values), ARRAY(Text()))

    def integer(self, value: int) -> NumberOperand:
        return self.number(value, NumberType.INT if value <= MAX_INT else NumberType.LONG)

    def number(self, value: int | float, type_: NumberType) -> NumberOperand:
        return NumberOperand(value, type_, self._bind((type_, value), value, type_.sql_type))

    def _bind(self, key: object, value: object, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        if key not in self._bound:
            # Unique, because in one statement with another selector each has its own parameters.
            self._bound[key] = bindparam("s", value, type_, unique=True)
        return self._bound[key]


def constant(truth: bool) -> Verdict:
    """TRUE or FALSE for every message."""
    return verdict.TRUE if truth else verdict.FALSE


def condition(operand: Operand) -> Verdict:
    """An operand in a place that needs a condition. There, a property is never TRUE, whatever its text."""
    if isinstance(operand, Verdict):
        return operand
    assert isinstance(operand, TextOperand)
    return verdict.plain(("CASE WHEN ", operand.is_there, " THEN false END"), true="false", false=operand.is_there)


def presence(text: TextOperand) -> Verdict:
    """Whether the property exists: TRUE or FALSE."""
    return verdict.plain(text.is_there) if text.is_property else verdict.TRUE


def truth(text: TextOperand) -> Verdict:
    """Java's Boolean.valueOf: TRUE for `true` in any case, FALSE for all other texts."""
    if text.literal is not None:
        return constant(text.literal.lower() == "true")
    return verdict.plain(func.lower(collate(text.sql, "C")) == literal_column("'true'"))
