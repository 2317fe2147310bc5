"""The shop over HTTP: its routes, and the listener in the same process."""

import asyncio

from httpx import ASGITransport, AsyncClient

from examples.fastapi_shop.app import create_app
from mqdb_client.testing import TestBroker, TestTopics


def test_an_order_is_billed_and_one_that_is_refused_sends_no_message(
    mqdb_broker: TestBroker, mqdb_topics: TestTopics
) -> None:
    orders, billing = mqdb_topics.topic("orders"), mqdb_topics.group("billing")

    async def shop() -> None:
        app = create_app(mqdb_broker.dsn, orders, billing)
        transport = ASGITransport(app)
        async with app.router.lifespan_context(app), AsyncClient(transport=transport, base_url="http://shop") as client:
            refused = await client.post("/orders", json={"item": "tea", "price": -1})
            placed = await client.post("/orders", json={"item": "tea", "price": 3})
            await asyncio.to_thread(mqdb_broker.wait_until_consumed, billing, orders)
            shown = await client.get(f"/orders/{placed.json()['id']}")

        assert (refused.status_code, placed.status_code) == (422, 201)
        assert shown.json() == placed.json() | {"is_billed": True}

    asyncio.run(shop())

    assert sum(mqdb_broker.admin.messages.end_of(orders).values()) == 1
