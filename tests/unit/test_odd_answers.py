"""Listener results that are hard to inspect: the code that reads them reports a result and raises nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from mqdb.common.transaction import LocalTransactionState
from mqdb.errors import shown
from mqdb_client.consumer.listeners.direct_consumption import DirectResult
from mqdb_client.transaction.transaction_listener import TransactionAnswer
from tests.fixtures.odd_answers import ODD_ANSWERS, text_that_fails
from tests.unit.test_direct_consumption import judged

answers = pytest.mark.parametrize("make", ODD_ANSWERS.values(), ids=ODD_ANSWERS)


@answers
def test_an_odd_value_is_shown_in_a_short_text(make: Callable[[], object]) -> None:
    text = shown(make())

    assert type(text) is str
    assert len(text) < 300


@answers
def test_a_message_that_is_consumed_directly_has_no_status_by_an_odd_answer(make: Callable[[], object]) -> None:
    assert judged(make).result is DirectResult.CR_LATER


def test_a_status_of_a_class_whose_methods_fail_is_that_status() -> None:
    assert judged(lambda: text_that_fails("CONSUME_SUCCESS")).result is DirectResult.CR_SUCCESS


@answers
def test_a_local_transaction_is_asked_about_again_after_an_odd_answer(make: Callable[[], Any]) -> None:
    with TransactionAnswer("check_local_transaction", "senders", "orders", "id") as answer:
        answer.given = make()

    assert answer.state is LocalTransactionState.UNKNOWN
