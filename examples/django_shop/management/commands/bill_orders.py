"""The worker: bills orders until SIGINT or SIGTERM."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections, transaction

from examples.django_shop.models import Order
from mqdb_client import ConsumeConcurrentlyStatus, ConsumeFromWhere, PushConsumer, ReceivedMessage


def bill(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
    """Bill the orders of some messages. After an exception, the messages are delivered again later."""
    close_old_connections()  # each thread of the consumer has a connection of Django's, which may have been idle
    with transaction.atomic():
        Order.objects.filter(pk__in=[int(message.body) for message in messages]).update(is_billed=True)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class Command(BaseCommand):
    """The command `python -m django bill_orders`."""

    help = "Bill the orders that the shop announces."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal; returns when the running listeners have ended."""
        consumer = PushConsumer(
            settings.BILLING_GROUP,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            persist_consumer_offset_interval=timedelta(seconds=1),
        )
        consumer.subscribe(settings.ORDERS_TOPIC)
        consumer.register_listener(bill)
        consumer.run()
