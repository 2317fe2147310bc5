"""Where the routes of the shop are."""

from django.urls import path

from examples.django_shop.views import place

urlpatterns = [path("orders", place)]
