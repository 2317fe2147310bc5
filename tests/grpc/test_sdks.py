"""RocketMQ 5's own SDKs against mqdb: the programs of tests/grpc, by language.

The cases of one language run in one process, several at a time.
"""

import pytest

from mqdb.broker.dead_letters import DeadLetterFilter
from mqdb_client import Admin
from tests.fixtures.sdk_programs import LONG, PROGRAMS, QUICK, RunSdk, SdkFront


@pytest.mark.parametrize("language", PROGRAMS)
def test_an_sdk_sends_and_consumes(run_sdk: RunSdk, sdk_front: SdkFront, language: str) -> None:
    run = run_sdk(language, QUICK)

    for case in QUICK:
        run.assert_ok(case)
    with Admin(sdk_front.dsn) as admin:
        lags = [lag for case in QUICK for lag in admin.groups.topics(f"{run.prefix}-{case}")]
    assert [lag for lag in lags if lag.lag or lag.in_flight] == []


@pytest.mark.long
@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("language", PROGRAMS)
def test_a_case_of_an_sdk(run_sdk: RunSdk, language: str, case: str) -> None:
    run_sdk(language, LONG).assert_ok(case)


@pytest.mark.long
@pytest.mark.parametrize("case", ["dlq", "fifo_dlq"])
@pytest.mark.parametrize("language", PROGRAMS)
def test_a_message_that_fails_too_often_is_a_dead_letter(
    run_sdk: RunSdk, sdk_front: SdkFront, language: str, case: str
) -> None:
    run = run_sdk(language, LONG)
    name = f"{run.prefix}-{case}"

    with Admin(sdk_front.dsn) as admin:
        [letter] = admin.dead_letters.read(DeadLetterFilter(group=name))
    assert (letter.topic, letter.body) == (name, b"poison")
