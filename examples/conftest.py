"""The tests of the examples use their own broker: see docs/testing.md."""

import os

pytest_plugins = ["mqdb_client.testing"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_shop.settings")
