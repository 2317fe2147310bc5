"""The filter on a retry topic: how large the combined filters of its topics may be."""

import pytest

from mqdb.errors import ParameterInvalid
from mqdb.selector import Selector, compile_selector
from mqdb.selector.check import MAX_PARTS, count_parts
from mqdb.store.filters.retry_filter import retry_filter


def selector_of(comparisons: int) -> Selector:
    """A selector with three parts for each comparison, and one for each OR."""
    return compile_selector(" OR ".join(f"a = '{number}'" for number in range(comparisons)))


def test_filters_that_would_take_long_to_plan_together_are_refused() -> None:
    """A pull of retries evaluates all filters, and every other topic of the consumer would wait for its plan."""
    half = selector_of(MAX_PARTS // 6)

    assert count_parts(half.tree) <= MAX_PARTS // 2
    assert retry_filter({"orders": half, "payments": half}).expression_type == "SQL92"
    with pytest.raises(ParameterInvalid, match=r"orders, payments, refunds.* 1,000 is the limit"):
        retry_filter({"orders": half, "payments": half, "refunds": half})


@pytest.mark.parametrize(
    ("expression", "parts"),
    [("a = 5", 3), ("NOT (a = -b)", 5), ("a IN ('x', 'y', 'z')", 2), ("a BETWEEN b AND 3 OR c CONTAINS 'x'", 7)],
)
def test_names_values_and_operators_are_parts(expression: str, parts: int) -> None:
    assert count_parts(compile_selector(expression).tree) == parts
