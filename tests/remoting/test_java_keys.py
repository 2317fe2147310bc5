"""RocketMQ's own Java client with access keys: all that it asks is signed, and keys share groups."""

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from mqdb.embedded import EmbeddedPostgres
from mqdb_client import Admin
from tests.fixtures.postgres import new_database
from tests.fixtures.remoting_kit import CHECK_INTERVAL, NEW, OLD, GetKit, Outcome, served_front
from tests.fixtures.variants import usually
from tests.remoting.test_java_kit import NEWER, QUICK

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

RunCases = Callable[..., dict[str, Outcome]]


@pytest.fixture(scope="module")
def run_cases(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory, java_kit: GetKit
) -> Iterator[RunCases]:
    """Runs cases with the keys, against a front of their own; gives the outcomes."""
    with new_database(postgres, template_database) as database, Admin(database.dsn) as admin:
        for key, secret in (OPERATOR, *APPLICATIONS.items()):
            admin.acl.grant(key, external=True, send=["kit-*"], read=["*"])
            admin.acl.set_secret(key, secret)
        admin.acl.grant(OPERATOR[0], send=["*"], admin=["*"])

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


@pytest.mark.parametrize(
    ("version", "binary"),
    usually((NEW, False), of=[(version, binary) for version in (NEW, OLD) for binary in (False, True)]),
)
def test_clients_of_several_keys_share_groups(run_cases: RunCases, version: str, binary: bool) -> None:
    """They share queues, but neither half messages nor replies; an administrator asks each of them."""
    outcome = run_cases(version, "keys", ("keys",), binary)["keys"]
    assert outcome.ok, f"{outcome.detail}; {outcome.figures}"


@pytest.mark.long
def test_all_that_a_client_does_is_signed(run_cases: RunCases) -> None:
    outcomes = run_cases(NEW, "quick", (*QUICK, *NEWER, "keys"), binary=False)
    assert set(outcomes) == {*QUICK, *NEWER, "keys"}
    assert {name: outcome.detail for name, outcome in outcomes.items() if not outcome.ok} == {}
