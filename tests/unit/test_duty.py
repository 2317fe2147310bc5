"""A duty keeps running after any error in the user code that it runs, such as an allocation strategy."""

import logging
from collections.abc import Callable

import pytest

from mqdb_client.duty import Duty
from tests.fixtures.odd_errors import ODD_ERRORS


@pytest.mark.parametrize("make", ODD_ERRORS.values(), ids=ODD_ERRORS)
def test_a_duty_that_fails_is_run_again_and_the_log_says_why(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # 20 MB of it are of no use in a report

    def work() -> None:
        raise make()

    duty = Duty("rebalance", work)

    duty.run_if_due()

    assert duty.seconds_left() <= 1
