"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order that somebody has placed."""

    item = models.TextField()
    price = models.IntegerField()
    is_billed = models.BooleanField(default=False)
