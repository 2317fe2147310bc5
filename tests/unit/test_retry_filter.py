"""The filter on a retry topic: how much the filters that it is made of may hold together."""

import pytest

from mqdb.errors import ParameterInvalid
from mqdb.selector import Selector, compile_selector
from mqdb.selector.check import count_parameters
from mqdb.store.consume_queue import pull_statement, statement_of
from mqdb.store.retry_filter import MAX_PARAMETERS, RetryFilter, retry_filter

#: Of one statement, for PostgreSQL.
MOST = 65_535


def selector_of(values: int) -> Selector:
    return compile_selector(" OR ".join(f"a = '{number}'" for number in range(values)))


def test_filters_that_a_pull_cannot_carry_together_are_refused() -> None:
    """Those pulls would fail, and all other topics of the consumer would wait for them."""
    most = selector_of(29_000)

    assert retry_filter({"orders": most, "payments": most}).expression_type == "SQL92"
    with pytest.raises(ParameterInvalid, match=r"orders, payments, refunds.* 65,000 is the limit"):
        retry_filter({"orders": most, "payments": most, "refunds": most})


def test_the_limit_leaves_room_for_the_pull_itself() -> None:
    assert MAX_PARAMETERS + len(pull_statement().names) + len(["RETRY_TOPIC"]) <= MOST


@pytest.mark.parametrize(
    "expression",
    ["a = 5 OR b <> -5 OR c > --5", "a IN ('x', 'y') AND a CONTAINS 'x'", "a = 1.5 OR TRUE", "-a IS NULL", "a < b"],
)
def test_no_filter_has_more_parameters_than_are_counted(expression: str) -> None:
    selector = compile_selector(expression)
    of_the_others = len(pull_statement().names) + len(["RETRY_TOPIC"])

    names = statement_of(RetryFilter((("orders", selector),))).names

    assert len(names) - of_the_others <= count_parameters(selector.tree)
