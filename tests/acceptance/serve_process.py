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


def main(arguments: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    server = Server(load_settings(**json.loads(arguments)))
    try:
        server.run(on_started=lambda: print("ready", flush=True))  # noqa: T201
    except MqdbError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1])
