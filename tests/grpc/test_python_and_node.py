"""RocketMQ 5's own SDKs for Python and Node, as they are, against the front for gRPC."""

import pytest

from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.sdk_python_node import LANGUAGES, RestartedFront

QUICK = ("send", "push")
LONG = (
    "tags",
    "sql",
    "fifo",
    "delay",
    "recall",
    "transaction_commit",
    "transaction_rollback",
    "transaction_check",
    "retry",
    "change_invisible",
    "workers",
    "slow",
    "restart",
)


# Node's SDK has to be fetched first.
@pytest.mark.parametrize("language", ["python", pytest.param("node", marks=pytest.mark.long)])
def test_an_sdk_sends_receives_and_is_pushed_to(sdk_front_pn: RestartedFront, language: str) -> None:
    with skipped_if_missing():
        outcomes = sdk_front_pn.run(language, *QUICK)

    assert [outcome for outcome in outcomes.values() if not outcome.ok] == []


@pytest.mark.long
@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_feature_works_with_an_sdk(sdk_front_pn: RestartedFront, language: str, case: str) -> None:
    with skipped_if_missing():
        [outcome] = sdk_front_pn.run(language, case).values()

    assert outcome.ok, outcome.detail
