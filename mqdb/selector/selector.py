"""A compiled selector: RocketMQ's SQL92, from a text to a clause with which PostgreSQL judges messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from sqlalchemy import ColumnElement

from mqdb.errors import ParameterInvalid, SelectorSyntaxError
from mqdb.selector.check import check
from mqdb.selector.clause import clause
from mqdb.selector.subscription import MAX_EXPRESSION_LENGTH, ExpressionType, find_excess
from mqdb.selector.syntax import Node, PropertyNode, Refusal, walk


@dataclass(frozen=True, slots=True)
class Selector:
    """An expression that RocketMQ would accept. Two selectors are equal if their texts are equal."""

    expression_type: ClassVar[ExpressionType] = ExpressionType.SQL92
    matches_all: ClassVar[bool] = False

    expression: str
    tree: Node = field(compare=False, repr=False)

    @property
    def canonical_text(self) -> str:
        """The text as given: all members of a group have to use the same text."""
        return self.expression

    @property
    def properties_used(self) -> frozenset[str]:
        """Names of the properties that the selector reads."""
        return frozenset(node.name for node in walk(self.tree) if isinstance(node, PropertyNode))

    def where(
        self, properties: ColumnElement[Any], columns: Mapping[str, ColumnElement[Any]] = MappingProxyType({})
    ) -> ColumnElement[bool]:
        """TRUE for the messages that RocketMQ would deliver; FALSE or NULL for all others.

        `properties` is a jsonb value with texts by name; `columns` are texts by name that `properties` does not
        contain. PostgreSQL raises no error for any message, and evaluates only functions of schema mqdb and its own.
        Names and values are bound with separate parameter names in each clause.
        """
        return clause(self.tree, properties, columns)

    def matches(self, _tag: str | None) -> bool:
        """Always True, because the database has already judged a received message."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # A tree may be nested deeper than pickle supports.
        return compile_selector, (self.expression,)


def compile_selector(expression: str) -> Selector:
    """Parse an SQL92 expression.

    Raises SelectorSyntaxError for expressions that RocketMQ refuses; for text after a complete expression, which
    RocketMQ ignores; for characters that PostgreSQL cannot store (U+0000, half a surrogate pair); and for expressions
    that would take long to plan: more than MAX_EXPRESSION_LENGTH characters, MAX_NESTING levels or MAX_PARTS names,
    values and operators.
    """
    if not isinstance(expression, str):
        raise ParameterInvalid("expression", expression, f"is {type(expression).__name__}, not text")
    if reason := find_excess(expression):
        raise SelectorSyntaxError(expression, MAX_EXPRESSION_LENGTH, reason, ())
    return _compiled(expression)


# A process has as many expressions as filtered topics; RocketMQ caches 100.
@lru_cache(maxsize=100)
def _compiled(expression: str) -> Selector:
    # Imported here, because Lark takes 50 ms to load, which users of tags should not pay.
    from mqdb.selector.parser import parse

    try:
        tree = parse(expression)
        check(tree)
    except Refusal as refusal:
        raise SelectorSyntaxError(expression, refusal.position, refusal.reason, refusal.expected) from None
    return Selector(expression, tree)
