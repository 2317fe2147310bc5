"""The interface that all filters share, so that readers of messages need not know the kind of a filter.

The database narrows its search with the filter. Only for tags does it find too many messages, because two tags may have
the same code. A reader therefore checks the tag again (`matches`), but nothing else. RocketMQ: SubscriptionData,
ExpressionType.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

#: Maximum number of characters in an expression, checked before anything else.
MAX_EXPRESSION_LENGTH: Final = 65_536


class ExpressionType(StrEnum):
    """The language of a filter."""

    TAG = "TAG"
    SQL92 = "SQL92"


class MessageFilter(Protocol):
    """A filter for the messages of a topic: a TagExpression or a Selector."""

    @property
    def expression_type(self) -> ExpressionType:
        """The language of the filter."""

    @property
    def canonical_text(self) -> str:
        """The text to store. Members of a group agree if their texts and types are equal."""

    @property
    def matches_all(self) -> bool:
        """Whether every message matches, so that no check is needed."""

    def matches(self, tag: str | None) -> bool:
        """Check a message that the database has found again, by its tag."""


class SubscriptionData(NamedTuple):
    """A topic and its filter, in the stored form."""

    topic: str
    expression_type: str
    expression: str


def stored_form(filters: Mapping[str, MessageFilter]) -> list[SubscriptionData]:
    """Filters by topic, in the stored form."""
    return [SubscriptionData(topic, each.expression_type, each.canonical_text) for topic, each in filters.items()]


def find_excess(text: str) -> str | None:
    """The reason why an expression is too long; None if it is not."""
    if len(text) <= MAX_EXPRESSION_LENGTH:
        return None
    return f"the expression has {len(text):,} characters; the limit is {MAX_EXPRESSION_LENGTH:,}"
