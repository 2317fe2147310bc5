"""RocketMQ 5's own SDKs against mqdb: the programs of tests/grpc, by language.

The cases of one language run in one process, several at a time.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mqdb.broker.dead_letters import DeadLetterFilter
from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.grpc.front import GrpcFront
from mqdb_client import Admin
from tests.fixtures.processes import wait_until
from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.sdk_programs import LONG, PROGRAMS, QUICK, RESTART, RunSdk, SdkFront, new_prefix, run_program


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


@pytest.mark.long
@pytest.mark.parametrize("language", PROGRAMS)
def test_an_sdk_goes_on_after_a_restart_of_the_front(sdk_front: SdkFront, language: str) -> None:
    """After a restart of RocketMQ's own proxy, Go's push consumer gets nothing for minutes."""

    def start(port: int) -> GrpcFront:
        front = GrpcFront(BrokerDsn("broker-a", sdk_front.dsn), HttpAddress("127.0.0.1", port))
        front.start()
        return front

    with skipped_if_missing():
        PROGRAMS[language]()
    prefix, front = new_prefix(language), start(0)
    with ThreadPoolExecutor(1) as pool, Admin(sdk_front.dsn) as admin:
        try:
            here = SdkFront(str(front.address), sdk_front.dsn)
            running = pool.submit(run_program, language, here, [RESTART], prefix)

            def sent() -> int:
                names = [topic.name for topic in admin.topics.list()]
                topic = f"{prefix}-{RESTART}"
                return sum(admin.messages.end_of(topic).values()) if topic in names else 0

            wait_until(lambda: sent() > 20 or running.done(), 60)
            front.stop()
            front = start(front.address.port)
            running.result().assert_ok(RESTART)
        finally:
            front.stop()
