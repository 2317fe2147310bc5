"""`mqdb consumer`: lists running consumers and their state, and has one consume a message at once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqdb
from mqdb.common.dsn import BrokerDsn
from mqdb.common.received_message import ReceivedMessage
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb_client.consumer.listeners.direct_consumption import ConsumeMessageDirectlyResult, judge
from mqdb_client.consumer.request_answers import RequestAnswers
from mqdb_client.instance import ClientInstance
from tests.fixtures.command_line import Place, served
from tests.fixtures.postgres import Database

STACK = '  File "prices.py", line 7, in look_up\n    lock.acquire()\n'


class Consumer:
    """A consumer of one queue with two listeners: one hangs, and the other fails."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def describe(self) -> dict[str, Any]:
        listener = {"thread": "worker-1", "seconds": 61.5, "queue": "orders@broker-a:0", "stack": STACK}
        queue = {"queue": "orders@broker-a:0", "next_offset": 12, "in_hand": 3}
        return {"state": "running", "queues": [queue], "listeners": [listener]}

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        self.given.append(message.body)
        prices: dict[str, int] = {}
        return judge("billing", message, lambda: prices["price"])


@pytest.fixture
def place(database: Database, tmp_path: Path) -> Iterator[Place]:
    with served(Place(tmp_path, database.dsn)) as place:
        yield place


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def client_id(database: Database, consumer: Consumer) -> Iterator[str]:
    """The id of the client that runs the consumer in group `billing`."""
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn))
    instance.open()
    instance.register(
        Registration(
            instance.client_id,
            ClientKind.CONSUMER,
            "billing",
            mqdb.__version__,
            subscriptions=[SubscriptionData("orders", "TAG", "*")],
        )
    )
    answers = RequestAnswers(instance, "billing", consumer)
    answers.start()
    yield instance.client_id
    answers.stop()
    instance.close()


def test_consumers_are_listed(place: Place, client_id: str) -> None:
    listed = json.loads(place.done("consumer", "list", "--json"))

    assert (listed["client_id"], listed["group"], listed["queues"]) == (client_id, "billing", 0)
    assert client_id in place.done("consumer", "list", "--group", "billing")
    assert place.done("consumer", "list", "--group", "others") == "No consumer is registered.\n"


def test_a_consumer_tells_how_it_is(place: Place, client_id: str) -> None:
    told = json.loads(place.done("consumer", "status", client_id, "--json"))
    plain = place.done("consumer", "status", client_id)
    with_stacks = place.done("consumer", "status", client_id, "--stack")

    assert (told["state"], told["queues"][0]["next_offset"], told["listeners"][0]["stack"]) == ("running", 12, STACK)
    assert plain.startswith(f"{client_id}: group billing, state running, role ")
    assert "61.5" in plain
    assert "lock.acquire()" not in plain
    assert with_stacks.endswith(f"worker-1:\n{STACK}")


def test_row_73_a_consumer_consumes_a_message_when_told_to(place: Place, client_id: str, consumer: Consumer) -> None:
    """Checklist row 73: the listener's result is returned, and the offset does not change."""
    place.done("topic", "create", "orders", "--queues", "1")
    place.done("send", "orders", "one", "two")
    message_id = json.loads(place.done("consume", "orders", "--exit", "--format", "json").splitlines()[1])["message_id"]
    consume = ("consumer", "consume", client_id, "--group", "billing", "--message-id", message_id)

    # Its log, which the consumer writes in this process, is on standard error.
    told = json.loads(place.call(*consume, "--json").text)
    printed = place.call(*consume).text

    assert consumer.given == [b"two", b"two"]
    assert (told["result"], told["remark"], told["topic"]) == ("CR_THROW_EXCEPTION", "KeyError: 'price'", "orders")
    assert printed.startswith("CR_THROW_EXCEPTION in ")
    assert "Traceback" in printed
    (group,) = (json.loads(line) for line in place.done("group", "show", "billing", "--json").splitlines())
    assert [row for row in group["queues"] if row["topic"] == "orders"] == []


def test_who_is_not_there_cannot_be_asked(place: Place, client_id: str) -> None:
    message = ("--message-id", "0" * 32)
    sentences = [
        place.call(*arguments).errors
        for arguments in (
            ("consumer", "status", "nobody"),
            ("consumer", "consume", "nobody", "--group", "billing", *message),
            ("consumer", "consume", client_id, "--group", "others", *message),
            ("consumer", "consume", client_id, "--group", "billing", *message),
            ("consumer", "consume", client_id, "--group", "billing", "--message-id", "7"),
        )
    ]

    assert sentences == [
        "mqdb: client 'nobody' is not online; see: mqdb consumer list\n",
        "mqdb: client 'nobody' is not online; see: mqdb consumer list\n",
        f"mqdb: group = 'others': client {client_id} is not a member of it\n",
        f"mqdb: message_id = '{'0' * 32}': there is no such message\n",
        "mqdb: message id = '7': must be 32 hexadecimal digits, or 34 of which the first are 01\n",
    ]
