"""The shop over HTTP, and the messages for its orders."""

import json

from examples.flask_shop.app import create_app
from mqdb_client.testing import TestBroker, TestTopics


def test_an_order_becomes_a_message(mqdb_broker: TestBroker, mqdb_topics: TestTopics) -> None:
    orders = mqdb_topics.topic("orders")
    shop = create_app(mqdb_broker.dsn, orders)
    try:
        placed = shop.test_client().post("/orders", json={"item": "tea", "price": 3})
    finally:
        shop.extensions["mqdb"].shutdown()

    assert placed.status_code == 201
    with mqdb_broker.admin.messages.reading(orders) as reader:
        reader.dispatch()
        [message] = reader
    assert (message.message_id, message.tag) == (placed.get_json()["message_id"], "placed")
    assert json.loads(message.body) == {"item": "tea", "price": 3}
