"""The routes of the shop."""

from django.urls import path

from examples.django_shop.views import place

urlpatterns = [path("orders", place)]
