"""RocketMQ's other clients against mqdb: Go, Node, Python with the C++ library, and Spring Boot's starter."""

import secrets

import pytest

from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.remoting_kit import RunKitProcess
from tests.remoting.other_clients import CLIENTS, run_client


@pytest.mark.long
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sends_consumes_and_retries(run_kit_process: RunKitProcess, remoting_front: str, name: str) -> None:
    topic = f"kit-{name}-{secrets.token_hex(4)}"
    # Not all of them have the first send make the topic.
    run_kit_process("topic", "--topic", topic).wait()
    with skipped_if_missing():
        outcome = run_client(name, remoting_front, topic)
    assert outcome.ok, outcome.detail
