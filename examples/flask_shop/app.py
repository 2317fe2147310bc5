"""A shop with Flask that announces its orders. Another process consumes them.

export MQDB_DSN="$(mqdb dsn)"   # of the embedded broker; or the DSN of your own
flask --app examples.flask_shop.app run
curl localhost:5000/orders --json '{"item": "tea", "price": 3}'
"""

import atexit
import json

from flask import Flask, request
from flask.typing import ResponseReturnValue

from mqdb_client import Message, Producer


def create_app(dsn: str | None = None, topic: str = "flask-orders") -> Flask:
    """The application; without `dsn` its broker is that of MQDB_DSN."""
    app = Flask(__name__)
    # One for the process: threads that send at the same time share statements. A server that forks its workers makes
    # the application in each of them, as gunicorn does without --preload.
    producer = Producer("shop", dsn)
    producer.start()
    atexit.register(producer.shutdown)
    app.extensions["mqdb"] = producer

    @app.post("/orders")
    def place() -> ResponseReturnValue:
        order = request.get_json()
        customer = str(order.get("customer", ""))
        # Orders of one customer go to one queue, and so stay in their order.
        result = producer.send(Message(topic, json.dumps(order), tag="placed"), sharding_key=customer)
        return {"message_id": result.message_id}, 201

    return app
