"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    item = models.TextField()
    price = models.IntegerField()
    is_billed = models.BooleanField(default=False)
