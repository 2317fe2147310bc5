"""RocketMQ's own Java client against mqdb: the cases of tests/remoting/kit, by version and serializer.

Each case sends, consumes, retries and so on like a user's program, and checks the results that such a program gets. The
cases of one client run together in one JVM.
"""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from mqdb.embedded import EmbeddedPostgres
from mqdb_client import Admin
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.remoting_kit import (
    CHECK_INTERVAL,
    NEW,
    OLD,
    GetKit,
    Outcome,
    RunKit,
    RunKitProcess,
    served_front,
)
from tests.fixtures.variants import usually

#: Only 5.x has these.
NEWER = ("consume_mode", "delay_time", "pop", "recall")
QUICK = (
    "batch",
    "broadcasting",
    "compression",
    "delay_level",
    "errors",
    "lite_pull_assign",
    "lite_pull_subscribe",
    "old_send",
    "orderly",
    "orderly_dlq",
    "query",
    "query_offsets",
    "rebalance",
    "request_reply",
    "request_timeout",
    "retry_dlq",
    "send_async",
    "send_oneway",
    "send_sync",
    "sql92",
    "sql92_bad",
    "tags",
    "trace",
    "transactions",
)


@pytest.mark.parametrize("case", [*QUICK, *NEWER])
def test_a_case_of_the_newest_client(kit_results: RunKit, case: str) -> None:
    outcome = kit_results(NEW, "quick")[case]
    assert outcome.ok, f"{outcome.detail}; {outcome.figures}"


def test_the_kit_has_no_other_cases(kit_results: RunKit) -> None:
    assert set(kit_results(NEW, "quick")) == {*QUICK, *NEWER}


@pytest.mark.parametrize("version", usually(NEW, of=[NEW, OLD]))
def test_java_is_told_that_its_message_has_no_second_copy(
    java_kit: GetKit, database: Database, tmp_path: Path, version: str
) -> None:
    database.connect().execute("UPDATE mqdb.broker SET default_durability = 'SYNC_MASTER'")
    with served_front(database.dsn, tmp_path) as front:
        outcome = java_kit(version).run(str(front.address), "send_sync").outcomes["send_sync"]

    assert outcome.detail is not None
    assert "status of the send" in outcome.detail
    assert "SLAVE_NOT_AVAILABLE" in outcome.detail


def test_a_queue_is_handed_over_with_all_that_was_consumed(kit_results: RunKit) -> None:
    """A queue is handed over with everything that was consumed.

    RocketMQ's broker gives the queue to the next member while the last one's commit is still on its way.
    """
    assert kit_results(NEW, "quick")["rebalance"].figures["doubled"] == 0


@pytest.mark.long
@pytest.mark.parametrize("case", [*QUICK, *NEWER])
def test_a_case_with_binary_headers(kit_results: RunKit, case: str) -> None:
    outcome = kit_results(NEW, "quick", binary=True)[case]
    assert outcome.ok, f"{outcome.detail}; {outcome.figures}"


@pytest.mark.long
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("case", QUICK)
def test_a_case_of_the_old_client(kit_results: RunKit, case: str, binary: bool) -> None:
    outcome = kit_results(OLD, "quick", binary=binary)[case]
    assert outcome.ok, f"{outcome.detail}; {outcome.figures}"


@pytest.mark.long
@pytest.mark.parametrize("version", [NEW, OLD])
def test_nothing_is_lost_while_members_come_and_go(kit_results: RunKit, version: str) -> None:
    outcome = kit_results(version, "rebalance_load")["rebalance_load"]
    assert outcome.ok, f"{outcome.detail}; {outcome.figures}"


@pytest.mark.long
def test_a_consumer_that_runs_on_its_own(run_kit_process: RunKitProcess) -> None:
    """A consumer runs on its own, in the kit's modes that other tests use to mix members of several languages."""
    topic = f"kit-modes-{secrets.token_hex(4)}"
    producer = run_kit_process("produce", "--topic", topic, "--count", "40", "--threads", "4", "--orders", "8")
    producer.wait()
    assert producer.said("done") == [40]
    consumer = run_kit_process("consume", "--topic", topic, "--group", topic, "--orderly")
    consumer.wait_for("consumed", 40)
    assert sorted(consumer.said("consumed")) == sorted(producer.said("sent"))
    assert consumer.said("queues")[-1] == [0, 1, 2, 3]
    consumer.leave()
    assert consumer.said("stopped")


# -- access keys ----------------------------------------------------------------------------------

#: Who makes topics and administers, with the secret; and the applications.
OPERATOR: Final = "ops", "the operator's secret"
APPLICATIONS: Final = {"market-java": "secret: of the market", "shop-java": "secret of the shop"}

#: What the cases call their groups.
GROUPS: Final = (
    "group",
    "second",
    "all",
    "one",
    "two",
    "none",
    "undertaker",
    "tracers",
    *(f"group{each}" for each in range(40)),
)

RunWithKeys = Callable[..., dict[str, Outcome]]


@pytest.fixture(scope="module")
def run_with_keys(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory, java_kit: GetKit
) -> Iterator[RunWithKeys]:
    """Runs cases with the keys, against a separate front; returns the outcomes."""
    with new_database(postgres, template_database) as database, Admin(database.dsn) as admin:
        for key, secret in (OPERATOR, *APPLICATIONS.items()):
            admin.acl.grant(key, external=True, send=["kit-*"], read=["*"])
            admin.acl.set_secret(key, secret)
        admin.acl.grant(OPERATOR[0], send=["*"], admin=["*"], admin_group=["*"])

        def run(version: str, cases: str, names: tuple[str, ...], binary: bool) -> dict[str, Outcome]:
            suffix = f"{version}-{binary}-{cases}".replace(".", "-")
            for key in (OPERATOR[0], *APPLICATIONS):
                admin.acl.grant(key, group=[f"kit-{name}-{part}-{suffix}" for name in names for part in GROUPS])
            keys = ",".join(f"{key}:{secret}" for key, secret in APPLICATIONS.items())
            options = ["--suffix", suffix, "--access-key", OPERATOR[0], "--secret-key", OPERATOR[1], "--keys", keys]
            options += ["--check-seconds", str(CHECK_INTERVAL.seconds)]
            return java_kit(version).run(address, cases, options=options, binary=binary).outcomes

        with served_front(database.dsn, tmp_path_factory.mktemp("keys")) as front:
            address = str(front.address)
            yield run


@pytest.mark.long
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("version", [NEW, OLD])
def test_clients_of_several_keys_share_groups(run_with_keys: RunWithKeys, version: str, binary: bool) -> None:
    """Clients with different keys share queues, but neither half messages nor replies.

    An administrator queries each of them.
    """
    outcome = run_with_keys(version, "keys", ("keys",), binary)["keys"]
    assert outcome.ok, f"{outcome.detail}; {outcome.figures}"


@pytest.mark.long
def test_all_that_a_client_does_is_signed(run_with_keys: RunWithKeys) -> None:
    outcomes = run_with_keys(NEW, "quick", (*QUICK, *NEWER, "keys"), binary=False)
    assert set(outcomes) == {*QUICK, *NEWER, "keys"}
    assert {name: outcome.detail for name, outcome in outcomes.items() if not outcome.ok} == {}
