"""The filter on a retry topic: that of the topic in which a message first failed, if the broker filters retries at all.

RocketMQ: ExpressionForRetryMessageFilter, BrokerConfig.filterSupportRetry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, case, not_, or_, select, true

from mqdb.common.property import Property
from mqdb.errors import ParameterInvalid
from mqdb.selector import Selector
from mqdb.selector.check import MAX_PARTS, count_parts
from mqdb.selector.subscription import ExpressionType, MessageFilter
from mqdb.selector.tags import ALL_TAGS, parse_tag_expression
from mqdb.store.fragments import full_topic
from mqdb.store.tables import broker


@dataclass(frozen=True, slots=True)
class RetryFilter:
    """Filters retries by the filter of the topic in which they first failed, if `filter_support_retry` is on.

    The database reads the setting in each pull, so a change applies immediately, and on each broker separately.
    """

    expression_type: ClassVar[ExpressionType] = ExpressionType.SQL92
    matches_all: ClassVar[bool] = False

    selectors: tuple[tuple[str, Selector], ...]
    """The filters, with their topics. Messages that failed in another topic pass."""

    @property
    def canonical_text(self) -> str:
        """A readable text, which is not stored."""
        return "; ".join(f"{topic}: {selector.expression}" for topic, selector in self.selectors)

    def where(self, properties: ColumnElement[Any], columns: Mapping[str, ColumnElement[Any]]) -> ColumnElement[bool]:
        """The condition on a record, like that of `Selector.where`."""
        topic = properties.op("->>")(Property.RETRY_TOPIC.value)
        judged = case(
            *((topic == full_topic(name), each.where(properties, columns)) for name, each in self.selectors),
            else_=true(),
        )
        return or_(not_(select(broker.c.filter_support_retry).scalar_subquery()), judged)

    def matches(self, _tag: str | None) -> bool:
        """Always True, because the database has already applied the filter."""
        return True


def retry_filter(filters: Mapping[str, MessageFilter]) -> MessageFilter:
    """The filter on the retry topic of a group with these filters: all messages pass unless SQL92 filters apply.

    Raises ParameterInvalid if the filters together have more than MAX_PARTS names, values and operators.
    """
    selectors = tuple((topic, each) for topic, each in sorted(filters.items()) if isinstance(each, Selector))
    if not selectors:
        return parse_tag_expression(ALL_TAGS)
    count = sum(count_parts(selector.tree) for _, selector in selectors)
    if count > MAX_PARTS:
        topics = ", ".join(topic for topic, _ in selectors)
        reason = (
            "their SQL92 filters apply to retries together, "
            f"and have {count:,} names, values and operators; {MAX_PARTS:,} is the limit"
        )
        raise ParameterInvalid("subscriptions", topics, reason)
    return RetryFilter(selectors)
