"""Message selector: a consumer's choice of the messages of a topic. RocketMQ: MessageSelector."""

from dataclasses import dataclass

from mqdb.errors import ParameterInvalid
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import ALL_TAGS, parse_tag_expression


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """A selector. It is made by `by_tag`, for which a plain text is short, or by `by_sql`."""

    message_filter: MessageFilter

    @classmethod
    def by_tag(cls, expression: str | None = ALL_TAGS) -> "MessageSelector":
        """Select messages with one of these tags, `TagA || TagB`; all messages with `*`.

        Raises TagExpressionInvalid, and ParameterInvalid if the expression is not text.
        """
        _check_text(expression)
        return cls(parse_tag_expression(expression))

    @classmethod
    def by_sql(cls, expression: str) -> "MessageSelector":
        """Select messages by a condition on properties in RocketMQ's SQL92: `TAGS IN ('A', 'B') AND price > 10`.

        The broker evaluates the condition, and sends only messages that match. Properties are text. Compared with a
        number they are converted to numbers; a message is not delivered if that fails, or if the condition is unknown
        because a property is missing. `mqdb selector explain` tells what an expression means.
        Raises SelectorSyntaxError, which points at the place.
        """
        return cls(compile_selector(expression))


def _check_text(expression: object) -> None:
    if not isinstance(expression, str | None):
        reason = f"is {type(expression).__name__}; give text such as 'TagA || TagB', or MessageSelector.by_sql(...)"
        raise ParameterInvalid("expression", expression, reason)


def filter_of(expression: str | MessageSelector | None) -> MessageFilter:
    """The filter that an argument of `subscribe` stands for. Raises TagExpressionInvalid, ParameterInvalid."""
    selector = expression if isinstance(expression, MessageSelector) else MessageSelector.by_tag(expression)
    return selector.message_filter
