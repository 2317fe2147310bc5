"""The common part of all filters, so that readers of messages need not know the kind of a filter.

The database narrows its search by the filter. Only with tags it finds too many messages, because two tags may have one
code. So a reader checks the tag again (`matches`), and nothing else. RocketMQ: SubscriptionData, ExpressionType.
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
    """A filter for the messages of a topic: a TagExpression or a Selector."""

    @property
    def expression_type(self) -> ExpressionType:
        """The language of the filter."""

    @property
    def canonical_text(self) -> str:
        """The text to store. The members of a group agree if it and the type are equal."""

    @property
    def matches_all(self) -> bool:
        """Whether every message matches, so that no check is needed."""

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
