"""What all filters have in common, so that who reads messages need not know which kind of filter it has been given.

The database narrows its search by the filter, and says yes too often for one kind only: two tags may have one code.
So a reader looks at the tag again (`matches`), and nothing else. RocketMQ: SubscriptionData, ExpressionType.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

#: Characters of an expression, looked at before anything else is.
MAX_EXPRESSION_LENGTH: Final = 65_536


class ExpressionType(StrEnum):
    """The language of a filter."""

    TAG = "TAG"
    SQL92 = "SQL92"


class MessageFilter(Protocol):
    """Which messages of a topic a subscriber wants: a TagExpression or a Selector."""

    @property
    def expression_type(self) -> ExpressionType:
        """The language of the filter."""

    @property
    def canonical_text(self) -> str:
        """What is stored. The members of a group agree when this and the type are equal."""

    @property
    def matches_all(self) -> bool:
        """Whether it lets every message pass, so that nobody need look."""

    def matches(self, tag: str | None) -> bool:
        """The second look at a message that the database has found, by its tag."""


class SubscriptionData(NamedTuple):
    """A topic and the filter on it, as it is stored."""

    topic: str
    expression_type: str
    expression: str


def stored_form(filters: Mapping[str, MessageFilter]) -> list[SubscriptionData]:
    """Filters by topic, as they are stored."""
    return [SubscriptionData(topic, each.expression_type, each.canonical_text) for topic, each in filters.items()]


def find_excess(text: str) -> str | None:
    """Why an expression is too long to be looked at; None if it is not."""
    if len(text) <= MAX_EXPRESSION_LENGTH:
        return None
    return f"the expression has {len(text):,} characters, the limit is {MAX_EXPRESSION_LENGTH:,}"
