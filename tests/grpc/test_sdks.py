"""RocketMQ 5's own SDKs against mqdb: the programs of tests/grpc, by language.

The cases of one language run in one process.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mqdb.broker.dead_letters import DeadLetterFilter
from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.grpc.certificate import self_signed
from mqdb.grpc.front import GrpcFront
from mqdb_client import Admin
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.remoting_kit import served_broker
from tests.fixtures.sdk_programs import PROGRAMS, QUICK, RESTART, RunSdk, SdkFront, new_prefix, run_program

#: What Go has to compile, and Node to fetch, is too much for the quick run.
QUICK_LANGUAGES = ["java", "python", *(pytest.param(each, marks=pytest.mark.long) for each in ("go", "node"))]
CASES = [(language, case) for language, program in PROGRAMS.items() for case in program.cases]


@pytest.mark.parametrize("language", QUICK_LANGUAGES)
def test_an_sdk_sends_and_consumes(run_sdk: RunSdk, sdk_front: SdkFront, language: str) -> None:
    run = run_sdk(language, QUICK)

    for case in QUICK:
        run.assert_ok(case)
    with Admin(sdk_front.dsn) as admin:
        lags = [lag for case in QUICK for lag in admin.groups.topics(f"{run.prefix}-{case}")]
    assert [lag for lag in lags if lag.lag or lag.in_flight] == []


@pytest.mark.long
@pytest.mark.parametrize(("language", "case"), CASES)
def test_a_case_of_an_sdk(run_sdk: RunSdk, language: str, case: str) -> None:
    run_sdk(language, PROGRAMS[language].cases).assert_ok(case)


@pytest.mark.long
@pytest.mark.parametrize(("language", "case"), [each for each in CASES if each[1] in ("dlq", "fifo_dlq")])
def test_a_message_that_fails_too_often_is_a_dead_letter(
    run_sdk: RunSdk, sdk_front: SdkFront, language: str, case: str
) -> None:
    run = run_sdk(language, PROGRAMS[language].cases)
    name = f"{run.prefix}-{case}"

    with Admin(sdk_front.dsn) as admin:
        [letter] = admin.dead_letters.read(DeadLetterFilter(group=name))
    assert (letter.topic, letter.body) == (name, b"poison")


@pytest.mark.long
@pytest.mark.parametrize("language", PROGRAMS)
def test_an_sdk_goes_on_after_a_restart_of_the_front(sdk_front: SdkFront, language: str) -> None:
    """An SDK continues after a restart of the front.

    After a restart of RocketMQ's own proxy, Go's push consumer receives nothing for minutes.
    """

    def start(port: int) -> GrpcFront:
        front = GrpcFront(BrokerDsn("broker-a", sdk_front.dsn), HttpAddress("127.0.0.1", port))
        front.start()
        return front

    with skipped_if_missing():
        PROGRAMS[language].build()
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


@pytest.mark.long
@pytest.mark.parametrize("language", ["go", "java"])  # which look at no certificate
def test_an_sdk_signs_and_speaks_tls(database: Database, tmp_path: Path, language: str) -> None:
    with skipped_if_missing():
        PROGRAMS[language].build()
    prefix, cases = new_prefix(language), (*QUICK, "dlq", "fifo_dlq", "recall", "transaction_check")
    names = [f"{prefix}-{case}" for case in cases]
    with served_broker(database.dsn, tmp_path), Admin(database.dsn) as admin:
        admin.acl.grant("shop", send=names, read=names, group=names, external=True)
        admin.acl.set_secret("shop", "a long secret")
        anywhere = HttpAddress("127.0.0.1", 0)
        front = GrpcFront(
            BrokerDsn("broker-a", database.dsn), anywhere, tls_address=anywhere, certificate=self_signed("127.0.0.1")
        )
        front.start()
        try:
            here = SdkFront(str(front.tls_address), database.dsn)
            key = {"SDK_ACCESS_KEY": "shop", "SDK_SECRET_KEY": "a long secret"}
            run = run_program(language, here, cases, prefix, SDK_TLS="1", **key)
            stranger = run_program(language, here, ["push"], SDK_TLS="1")
        finally:
            front.stop()
    for case in cases:
        run.assert_ok(case)
    assert not stranger.outcomes["push"].ok
