"""The shop over HTTP, with its worker in a separate process."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from mqdb_client.testing import TestBroker, TestTopics


@pytest.fixture
def shop(mqdb_broker: TestBroker, mqdb_topics: TestTopics, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set up Django and the tables of the shop."""
    monkeypatch.setenv("MQDB_DSN", mqdb_broker.dsn)
    monkeypatch.setenv("SHOP_TOPIC", mqdb_topics.topic("orders"))
    monkeypatch.setenv("SHOP_GROUP", mqdb_topics.group("billing"))
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    yield
    from examples.django_shop.views import producer

    producer().shutdown()
    connections.close_all()


@pytest.mark.usefixtures("shop")
def test_an_order_is_billed_by_the_worker(mqdb_broker: TestBroker) -> None:
    from django.conf import settings
    from django.test import Client

    from examples.django_shop.models import Order

    worker = subprocess.Popen([sys.executable, "-m", "django", "bill_orders"])
    try:
        client = Client()
        placed = client.post("/orders", {"item": "tea", "price": "3"})
        assert placed.status_code == 201
        assert client.post("/orders", {"item": "tea", "price": "-1"}).status_code == 422
        assert [order.pk for order in Order.objects.all()] == [placed.json()["id"]]
        with mqdb_broker.admin.messages.reading(settings.ORDERS_TOPIC) as reader:
            reader.dispatch()
            assert len(list(reader)) == 1
        starting = timedelta(minutes=2)  # of the worker
        mqdb_broker.wait_until_consumed(settings.BILLING_GROUP, settings.ORDERS_TOPIC, starting)
    finally:
        worker.send_signal(signal.SIGTERM)
        ended = worker.wait(60)

    assert ended == 0
    assert Order.objects.get().is_billed
