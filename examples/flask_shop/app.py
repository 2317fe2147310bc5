"""A shop with Flask that sends a message for each order. Another process consumes the messages.

export MQDB_DSN="$(mqdb dsn)"   # the DSN of the embedded broker, or of your own
flask --app examples.flask_shop.app run
curl localhost:5000/orders --json '{"item": "tea", "price": 3}'
"""

import atexit
import json

from flask import Flask, request
from flask.typing import ResponseReturnValue

from mqdb_client import Message, Producer


def create_app(dsn: str | None = None, topic: str = "flask-orders") -> Flask:
    """The application. Without `dsn` it uses the broker in MQDB_DSN."""
    app = Flask(__name__)
    # One producer for the process, because threads that send at the same time share statements. A server that forks
    # workers has to create the application in each worker, as gunicorn does without --preload.
    producer = Producer("shop", dsn)
    producer.start()
    atexit.register(producer.shutdown)
    app.extensions["mqdb"] = producer

    @app.post("/orders")
    def place() -> ResponseReturnValue:
        order = request.get_json()
        customer = str(order.get("customer", ""))
        # Orders of one customer go to the same queue, so they stay in order.
        result = producer.send(Message(topic, json.dumps(order), tag="placed"), sharding_key=customer)
        return {"message_id": result.message_id}, 201

    return app
