"""Settings of the shop. Its models are in the database of the broker, which MQDB_DSN names."""

import os

from psycopg.conninfo import conninfo_to_dict

_DSN = conninfo_to_dict(os.environ["MQDB_DSN"])

SECRET_KEY = "of an example"
ALLOWED_HOSTS = ["localhost", "testserver"]
INSTALLED_APPS = ["examples.django_shop"]
ROOT_URLCONF = "examples.django_shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": _DSN.pop("host", ""),
        "PORT": _DSN.pop("port", ""),
        "NAME": _DSN.pop("dbname", ""),
        "USER": _DSN.pop("user", ""),
        "PASSWORD": _DSN.pop("password", ""),
        "OPTIONS": _DSN,
    }
}
USE_TZ = True

ORDERS_TOPIC = os.environ.get("SHOP_TOPIC", "django-orders")
BILLING_GROUP = os.environ.get("SHOP_GROUP", "django-billing")
