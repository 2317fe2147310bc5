"""The target of a message, as given by the caller of a send."""

from typing import Any

import pytest

from mqdb.common.message import Message, MessageQueue
from mqdb.errors import ParameterInvalid
from mqdb_client.producer.queues.queue_choice import ANYWHERE, Target, target_of
from mqdb_client.producer.queues.queue_selector import select_random

MESSAGE = Message("orders", "x")
QUEUE = MessageQueue("orders", "broker-a", 1)
ONE: Any = "1"


def test_without_a_wish_any_queue_will_do() -> None:
    assert target_of(MESSAGE) is ANYWHERE


def test_one_wish_is_the_target() -> None:
    assert target_of(MESSAGE, "north") == Target(sharding_key="north")
    assert target_of(MESSAGE, queue=QUEUE) == Target(queue=QUEUE)
    assert target_of(MESSAGE, selector=select_random, argument=7) == Target(selector=select_random, argument=7)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"sharding_key": b"north"}, "sharding_key = .* is bytes, not text"),
        ({"queue": "orders@broker-a:1"}, "queue = .* is str; give a MessageQueue"),
        ({"queue": MessageQueue("orders", "broker-a", ONE)}, "queue = .* its number is str, not int"),
        ({"queue": MessageQueue("others", "broker-a", 1)}, "queue = .* goes to topic 'orders'"),
        ({"selector": "random"}, "selector = .* give a callable"),
        ({"argument": 5}, "selector_argument = 5: there is no selector that would take it"),
        ({"argument": 0}, "selector_argument = 0: there is no selector"),
        ({"sharding_key": "north", "argument": 5}, "selector_argument = 5: there is no selector"),
        ({"queue": QUEUE, "argument": 5}, "selector_argument = 5: there is no selector"),
        ({"sharding_key": "north", "queue": QUEUE}, "queue = .* sharding_key chooses the queue already"),
    ],
)
def test_what_is_no_target_is_refused(wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterInvalid, match=words):
        target_of(MESSAGE, **wishes)
