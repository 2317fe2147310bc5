"""A broker process; run as a script by test_serve_processes.

    python serve_process.py '{"dsn": ...}'      any settings, as JSON

Logs to standard error, and prints a line when it is ready.
"""

import json
import logging
import sys

from mqdb.errors import MqdbError
from mqdb.server import Server
from mqdb.settings import load_settings


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main(arguments: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    server = Server(load_settings(**json.loads(arguments)))
    try:
        server.run(on_started=say_ready)
    except MqdbError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1])
