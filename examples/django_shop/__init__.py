"""A shop with Django. An order and its message are one transaction; a management command bills the orders.

export MQDB_DSN="$(mqdb dsn)"   # of the embedded broker; or the DSN of your own
export DJANGO_SETTINGS_MODULE=examples.django_shop.settings
mqdb topic create django-orders
python -m django migrate --run-syncdb
python -m django runserver
python -m django bill_orders       # the worker, in another terminal
curl localhost:8000/orders -d item=tea -d price=3
"""
