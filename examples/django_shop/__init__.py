"""A shop with Django. One transaction stores an order and its message; a management command bills the orders.

export MQDB_DSN="$(mqdb dsn)"   # the DSN of the embedded broker, or of your own
export DJANGO_SETTINGS_MODULE=examples.django_shop.settings
mqdb topic create django-orders
python -m django migrate --run-syncdb
python -m django runserver
python -m django bill_orders       # the worker, in another terminal
curl localhost:8000/orders -d item=tea -d price=3
"""
