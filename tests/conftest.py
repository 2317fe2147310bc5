"""Fixtures live in tests/fixtures, one family in each file.

This module lists them, and defines the order of test files.
"""

import gc
import signal
from pathlib import Path

import hypothesis
import pytest

from tests.fixtures.fuzz import fuzz_cases
from tests.fixtures.shared_statements import share_statements

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.log",
    "tests.fixtures.broker",
    "tests.fixtures.services",
    "tests.fixtures.doctor",
    "tests.fixtures.sleeping",
    "tests.fixtures.serve",
    "tests.fixtures.browser",
    "tests.fixtures.proxy",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.standby",
    "tests.fixtures.consumers",
    "tests.fixtures.consumer_processes",
    "tests.fixtures.history",
    "tests.fixtures.lite_pull",
    "tests.fixtures.simple",
    "tests.fixtures.consuming",
    "tests.fixtures.orderly",
    "tests.fixtures.producers",
    "tests.fixtures.sends",
    "tests.fixtures.async_sends",
    "tests.fixtures.joined_sends",
    "tests.fixtures.appends",
    "tests.fixtures.replaced_database",
    "tests.fixtures.retries",
    "tests.fixtures.roles",
    "tests.fixtures.principals",
    "tests.fixtures.transactional",
    "tests.fixtures.transactions",
    "tests.fixtures.spark",
    "tests.fixtures.remoting_kit",
    "tests.fixtures.spans",
    "tests.fixtures.loop_producers",
    "tests.fixtures.loop_clients",
    "tests.fixtures.loop_consumers",
    "tests.fixtures.aio_consumers",
    "tests.fixtures.remoting_client",
    "tests.fixtures.remoting_groups",
    "tests.fixtures.popped_queues",
    "tests.fixtures.grpc_client",
    "tests.fixtures.sdk_programs",
    "tests.fixtures.stocked_standby",
]

# A busy machine may pause any example, and the making of any, which says nothing about the code. `do.py test --all`
# takes 1,000 of them.
hypothesis.settings.register_profile(
    "mqdb",
    deadline=None,
    max_examples=max(1, min(fuzz_cases(), 1_000)),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("mqdb")

share_statements()

# Collecting makes half a million objects, and none goes. The collector would look at them again and again.
gc.disable()

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


TESTS = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the test files so that several processes run all kinds of files in turn.

    Waiting tests then overlap computing ones. If one kind came after another, or in xdist's order by number of tests,
    the long waits of tests/acceptance would all come together.
    """
    if not hasattr(config, "workerinput"):
        return

    def kind(item: pytest.Item) -> str:
        return item.path.relative_to(TESTS).parts[0]

    files: dict[str, dict[Path, int]] = {}
    for item in items:
        of_kind = files.setdefault(kind(item), {})
        of_kind.setdefault(item.path, len(of_kind))

    def share_before(item: pytest.Item) -> float:
        of_kind = files[kind(item)]
        return of_kind[item.path] / len(of_kind)

    items.sort(key=share_before)


def pytest_collection_finish() -> None:
    """Exclude all modules and tests from garbage collection, because they live until the end."""
    gc.freeze()
    gc.enable()
