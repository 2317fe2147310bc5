"""Message selector: which messages of a topic a consumer wants. RocketMQ: MessageSelector."""

from dataclasses import dataclass

from mqdb.errors import NotSupported
from mqdb.selector.tags import ALL_TAGS, TagExpression, parse_tag_expression


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """Made by `by_tag`, which is what a plain text stands for."""

    tag_expression: TagExpression

    @classmethod
    def by_tag(cls, expression: str | None = ALL_TAGS) -> "MessageSelector":
        """Messages with one of these tags, `TagA || TagB`; all for `*`. Raises TagExpressionInvalid."""
        return cls(parse_tag_expression(expression))

    @classmethod
    def by_sql(cls, expression: str) -> "MessageSelector":
        """Messages whose properties fulfil an SQL92 expression. Raises NotSupported."""
        raise NotSupported("SQL92 selectors")
