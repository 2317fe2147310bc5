"""Fixtures live in tests/fixtures, one family a file; this page only lists them."""

import signal

import hypothesis

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.log",
    "tests.fixtures.broker",
    "tests.fixtures.services",
    "tests.fixtures.serve",
    "tests.fixtures.proxy",
    "tests.fixtures.standby",
    "tests.fixtures.consumers",
    "tests.fixtures.consumer_processes",
    "tests.fixtures.lite_pull",
    "tests.fixtures.orderly",
    "tests.fixtures.producers",
    "tests.fixtures.sends",
    "tests.fixtures.async_sends",
    "tests.fixtures.joined_sends",
    "tests.fixtures.appends",
    "tests.fixtures.replaced_database",
    "tests.fixtures.retries",
    "tests.fixtures.transactional",
    "tests.fixtures.transactions",
    "tests.fixtures.spark",
]

# A busy machine may pause any example, which says nothing about the code.
hypothesis.settings.register_profile("mqdb", deadline=None)
hypothesis.settings.load_profile("mqdb")

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
