"""The views of the shop."""

import atexit
from functools import cache

from django.conf import settings
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from examples.django_shop.models import Order
from mqdb_client import Message, Producer


@cache
def producer() -> Producer:
    """The producer of this process, which starts with the first order."""
    producer = Producer("shop")
    producer.start()
    atexit.register(producer.shutdown)
    return producer


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Store an order and send its message: both or neither."""
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"], price=int(request.POST["price"]))
        message = Message(settings.ORDERS_TOPIC, str(order.pk), keys=str(order.pk))
        producer().send(message, connection=connection)
        if order.price < 0:
            transaction.set_rollback(True)  # neither the order nor its message is stored
            return JsonResponse({"error": "a price is not below 0"}, status=422)
    return JsonResponse({"id": order.pk}, status=201)
