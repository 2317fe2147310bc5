"""Message selector: a consumer's choice of the messages of a topic. RocketMQ: MessageSelector."""

from dataclasses import dataclass

from mqdb.errors import ParameterInvalid
from mqdb.selector import compile_selector
from mqdb.selector.subscription import MessageFilter
from mqdb.selector.tags import ALL_TAGS, parse_tag_expression


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """A selector, made by `by_tag` or `by_sql`. A plain string is short for `by_tag`."""

    message_filter: MessageFilter

    @classmethod
    def by_tag(cls, expression: str | None = ALL_TAGS) -> "MessageSelector":
        """Select messages with one of these tags, `TagA || TagB`; all messages with `*`.

        Raises TagExpressionInvalid, and ParameterInvalid if the expression is not a string.
        """
        _check_text(expression)
        return cls(parse_tag_expression(expression))

    @classmethod
    def by_sql(cls, expression: str) -> "MessageSelector":
        """Select messages by a condition on properties in RocketMQ's SQL92: `TAGS IN ('A', 'B') AND price > 10`.

        The broker evaluates the condition and sends only matching messages. Properties are strings, and are converted
        when compared with a number. A message is not delivered if the conversion fails, or if the condition is unknown
        because a property is missing. `mqdb selector explain` shows what an expression means.
        Raises SelectorSyntaxError, which points to the error.
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
