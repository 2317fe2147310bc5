"""A broker process; run as a script by test_serve_processes.

    python serve_process.py '{"dsn": ...}'      any settings, as JSON; `longest_sleep_seconds` of its dispatcher, and
                                                `idle_seconds` of its segment keeper

Logs to standard error, and prints a line when it is ready.
"""

import json
import logging
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

from mqdb.errors import MqdbError
from mqdb.server import Server
from mqdb.service.dispatcher import Dispatcher, DispatcherConfig
from mqdb.service.segment_keeper import SegmentKeeper
from mqdb.service.service import Service
from mqdb.serving.broker import run
from mqdb.settings import Settings, load_settings


class SleepyServer(Server):
    """A server whose dispatcher and segment keeper poll as rarely as the test wants."""

    def __init__(self, settings: Settings, longest_sleep: timedelta, idle: timedelta) -> None:
        super().__init__(settings)
        self._config = DispatcherConfig(longest_sleep=longest_sleep)
        self._idle = idle

    def _make_services(self, scheduler: BackgroundScheduler) -> list[Service[Any]]:
        _, *others = super()._make_services(scheduler)
        for each in others:
            if isinstance(each, SegmentKeeper):
                each._config = replace(each._config, idle_interval=self._idle)
        return [Dispatcher(self._context_of(Dispatcher), self._config), *others]


def say_ready(_front: object) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def main(arguments: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = json.loads(arguments)
    longest_sleep = timedelta(seconds=settings.pop("longest_sleep_seconds", 1))
    idle = timedelta(seconds=settings.pop("idle_seconds", 10))
    server = SleepyServer(load_settings(**settings), longest_sleep, idle)
    try:
        run(server, say_ready)
    except MqdbError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1])
