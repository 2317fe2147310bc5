"""The option `schema`: which columns a read makes from JSON bodies, and what happens to bodies that do not fit.

The schema is in one of Spark's two forms, DDL or JSON. Spark parses DDL only on the JVM, and options are checked in a
Python process without a JVM, so this module has a parser. The parser supports the types that JSON bodies can have.
Workers import this module.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqdb.pipeline.errors import OptionInvalid

SCHEMA: Final = "schema"
ON_BAD_ROW: Final = "onBadRow"

#: The column for the text of a bad body, with the name used by `from_json`.
CORRUPT_RECORD: Final = "_corrupt_record"


class OnBadBody(StrEnum):
    """The action for a message whose body does not fit the schema."""

    FAIL = "fail"
    SKIP = "skip"
    NULL = "null"


@dataclass(frozen=True)
class BodyDecoding:
    """The columns that a read makes from bodies, with their types."""

    columns: StructType
    on_bad_body: OnBadBody

    @property
    def names(self) -> frozenset[str]:
        """The names of the columns."""
        return frozenset(self.columns.names)


_TYPES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "byte": ByteType(),
    "tinyint": ByteType(),
    "short": ShortType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "bigint": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NAMES_OF_TYPES: Final = "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, date, "
_HINT: Final = f"a column has one of the types {_NAMES_OF_TYPES}timestamp, array<>, map<string,> and struct<>"

_MOST_DIGITS: Final = 38


def parse_schema(text: str) -> StructType:
    """Parse columns: `id bigint, price double`, `struct<id:bigint>`, or JSON as from `StructType.json`.

    Raises OptionInvalid.
    """
    columns = _from_json(text) if text.lstrip().startswith("{") else _Ddl(text).columns()
    _check(text, columns)
    seen: set[str] = set()
    for name in columns.names:
        if name.lower() in seen:
            raise OptionInvalid(SCHEMA, text, f"has column {name!r} twice; Spark ignores case")
        seen.add(name.lower())
    return columns


def check_names(text: str, columns: StructType, others: Iterable[str]) -> None:
    """Raise OptionInvalid if a column has the same name as another column of the read, ignoring case like Spark."""
    taken = {name.lower() for name in others}
    for name in columns.names:
        if name.lower() in taken:
            reason = f"{name!r} is also a column of the message; omit that column with the option columns"
            raise OptionInvalid(SCHEMA, text, reason)


def _from_json(text: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, AssertionError) as error:
        raise OptionInvalid(SCHEMA, text, f"is not the JSON of a StructType: {error}") from None


def _check(text: str, type_: DataType, name: str = "") -> None:
    """Raise OptionInvalid for a type that bodies cannot have, and for a NOT NULL column."""
    where = f"column {name!r}: " if name else ""
    if isinstance(type_, StructType):
        if not type_.fields:
            raise OptionInvalid(SCHEMA, text, f"{where}has no column")
        for field in type_.fields:
            if not field.nullable:
                raise OptionInvalid(SCHEMA, text, f"column {field.name!r} is NOT NULL, and bodies may lack it")
            _check(text, field.dataType, field.name)
    elif isinstance(type_, ArrayType):
        _check(text, type_.elementType, name)
    elif isinstance(type_, MapType):
        if type_.keyType != StringType():
            raise OptionInvalid(SCHEMA, text, f"{where}the keys of a JSON object are strings")
        _check(text, type_.valueType, name)
    elif type_ not in _TYPES.values() and not isinstance(type_, DecimalType):
        raise OptionInvalid(SCHEMA, text, f"{where}type {type_.simpleString()} is not supported; {_HINT}")


_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")


class _Ddl:
    """Parses DDL from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while match := _TOKEN.match(text, at):
            self._tokens.append(match[1])
            at = match.end()
        if rest := text[at:].strip():
            raise self._invalid(rest)
        self._next = 0

    def columns(self) -> StructType:
        """Parse the whole text."""
        is_struct = [token.lower() for token in self._tokens[:2]] == ["struct", "<"]
        type_ = self._type() if is_struct else self._fields("")
        if self._peek() or not isinstance(type_, StructType):
            raise self._invalid(self._peek())
        return type_

    def _fields(self, end: str) -> StructType:
        fields = [self._field()]
        while self._accept(","):
            fields.append(self._field())
        if end:
            self._expect(end)
        return StructType(fields)

    def _field(self) -> StructField:
        token = self._take()
        if not re.fullmatch(r"\w+|`.*`", token, re.DOTALL):
            raise self._invalid(token)
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        self._accept(":")
        type_ = self._type()
        nullable = not self._accept("not")
        if not nullable:
            self._expect("null")
        if self._accept("comment"):
            self._take()
        return StructField(name, type_, nullable)

    def _type(self) -> DataType:
        token = self._take()
        name = token.lower()
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return ArrayType(element)
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return MapType(key, value)
        if name == "struct":
            self._expect("<")
            return self._fields(">")
        if not re.fullmatch(r"\w+", token):
            raise self._invalid(token)
        if name not in _TYPES:
            raise OptionInvalid(SCHEMA, self._text, f"type {token!r} is not supported; {_HINT}")
        return _TYPES[name]

    def _decimal(self) -> DecimalType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            scale = self._number() if self._accept(",") else 0
            self._expect(")")
        if not 0 < precision <= _MOST_DIGITS or scale > precision:
            reason = f"decimal({precision},{scale}) has more than {_MOST_DIGITS} digits, or a scale above its precision"
            raise OptionInvalid(SCHEMA, self._text, reason)
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not re.fullmatch("[0-9]{1,9}", token):
            raise self._invalid(token)
        return int(token)

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise self._invalid("")
        self._next += 1
        return token

    def _accept(self, token: str) -> bool:
        is_next = self._peek().lower() == token
        self._next += is_next
        return is_next

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._invalid(self._peek())

    def _invalid(self, near: str) -> OptionInvalid:
        where = f"near {near!r}" if near else "at its end"
        return OptionInvalid(SCHEMA, self._text, f"cannot be read {where}; write it as 'id bigint, price double'")
