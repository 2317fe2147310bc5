"""A broker with data for its dashboard: a shop with the billing program of the tutorial.

Group `billing` gives up orders with a misspelled field, `mailer` is slow, and `reports` has no member.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import sin
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import psycopg

from mqdb.common.http_address import HttpAddress
from mqdb.dashboard.dashboard import Dashboard
from mqdb.embedded import EmbeddedPostgres, temporary_home
from mqdb.server import Server, WebParts
from mqdb.settings import Settings
from mqdb.web.time_series import TOTAL, BrokerFigure, Key, TimeSeries
from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)

ROOT: Final = Path(__file__).resolve().parent.parent

ORDERS: Final = 200
#: One order in this many has a misspelled field, beginning with the third, which is the order of the tutorial.
_MISSPELLED: Final = 40
_THIRD: Final = 3

_ITEMS: Final = ("lamp", "chair", "table", "shelf")
_SAMPLE_SECONDS: Final = 5
_PATIENCE_SECONDS: Final = 60.0


class ExampleShop(NamedTuple):
    """A dashboard, and the objects that the pictures show."""

    dashboard: Dashboard
    address: HttpAddress
    letter: str
    """The id of the dead letter of order 3."""
    directory: str
    """The directory in which billing runs, which its tracebacks name."""


@contextmanager
def serving_shop() -> Iterator[ExampleShop]:
    """Serve the dashboard of a temporary broker, and send messages while the block runs."""
    with (
        temporary_home() as home,
        TemporaryDirectory() as directory,
        EmbeddedPostgres(home) as postgres,
        _serving(postgres.dsn) as (dashboard, address),
        Producer("shop", postgres.dsn) as producer,
    ):
        _create(postgres.dsn)
        for number in range(1, ORDERS + 1):
            producer.send(order(number), sharding_key=str(number))
        with (
            _worker(postgres.dsn, Path(directory)),
            _consuming(postgres.dsn),
            _sending(producer),
        ):
            letter = _third_letter(postgres.dsn)
            _wait_until(lambda: _lag_of_billing(postgres.dsn) == 0)
            yield ExampleShop(dashboard, address, letter, directory)


def order(number: int) -> Message:
    """An order whose tag, price and region depend on its number."""
    price = "prise" if number % _MISSPELLED == _THIRD else "price"
    amount = 30 if number == _THIRD else 17 * number % 500
    return Message(
        "orders",
        json.dumps({"item": _ITEMS[(number - _THIRD) % len(_ITEMS)], price: amount}),
        tag=("paid", "new", "refunded")[number % 3],
        keys=str(number),
        properties={"amount": str(amount), "region": ("EU", "US")[number % 2]},
    )


def _create(dsn: str) -> None:
    """Create the topics, and groups whose offsets are at the beginning."""
    with Admin(dsn) as admin:
        for name in ("orders", "shipments", "visits"):
            admin.topics.create(name, actor="ada")
    for group in ("mailer", "reports"):
        consumer = PushConsumer(group, dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("orders", "paid || refunded" if group == "mailer" else "*")
        consumer.register_listener(lambda messages: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
        consumer.start()
        consumer.shutdown()


@contextmanager
def _worker(dsn: str, directory: Path) -> Iterator[None]:
    """Run `mqdb worker` with billing.py of the tutorial while the block runs."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(# billing\.py\n.*?)```", page, re.DOTALL)
    (directory / "billing.py").write_text(program)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MQDB_")}
    environ |= {"MQDB_DSN": dsn, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    command = [sys.executable, "-m", "mqdb", "worker", "billing:app"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=directory, env=environ, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def _third_letter(dsn: str) -> str:
    """Wait until billing has given up all bad orders; returns the id of the dead letter of order 3."""
    wrong = len([number for number in range(1, ORDERS + 1) if number % _MISSPELLED == _THIRD])
    with psycopg.connect(dsn, autocommit=True) as connection:

        def letters() -> dict[str, str]:
            return dict(connection.execute("SELECT keys, msg_id FROM mqdb.dlq").fetchall())

        _wait_until(lambda: len(letters()) == wrong)
        return letters()[str(_THIRD)]


def _lag_of_billing(dsn: str) -> int:
    with Admin(dsn) as admin:
        return sum(each.lag for each in admin.groups.topics("billing"))


@contextmanager
def _consuming(dsn: str) -> Iterator[None]:
    """Run a consumer of visits, and a consumer of orders whose first listeners return only when the block ends."""
    is_over = threading.Event()

    def count(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def send_mail(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        is_over.wait()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    analytics = PushConsumer("analytics", dsn, persist_consumer_offset_interval=timedelta(seconds=1))
    analytics.subscribe("visits")
    analytics.register_listener(count)
    mailer = PushConsumer("mailer", dsn)
    mailer.subscribe("orders", "paid || refunded")
    mailer.register_listener(send_mail)
    with analytics, mailer:
        try:
            yield
        finally:
            is_over.set()


@contextmanager
def _sending(producer: Producer) -> Iterator[None]:
    """Send visits while the block runs, so that the overview has a rate to show."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.02):
            producer.send(Message("visits", "a visit"))

    thread = threading.Thread(target=send, name="visits")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _serving(dsn: str) -> Iterator[tuple[Dashboard, HttpAddress]]:
    """Serve a broker with its dashboard while the block runs."""
    settings = Settings(dsn=dsn, http="127.0.0.1:0")
    dashboard = Dashboard(settings)
    _remember_an_hour(dashboard.figures.series)
    try:
        with Server(settings, web=WebParts(dashboard.application, dashboard.figures)) as server:
            _wait_until(lambda: server.is_leader)
            assert server.http_address is not None
            yield dashboard, server.http_address
    finally:
        dashboard.close()


def _remember_an_hour(series: TimeSeries) -> None:
    """Add figures of the previous hour, as if the dashboard had been running."""
    now = time.monotonic()
    counts: dict[Key, float] = dict.fromkeys(_rates(0), 0.0)
    for seconds in range(3_600, 0, -_SAMPLE_SECONDS):
        for key, rate in _rates(seconds).items():
            counts[key] += rate * _SAMPLE_SECONDS
        billing = round(min(1.0, seconds / 300) * (150 + 90 * sin(seconds / 420) + 60 * sin(seconds / 150)))
        levels: dict[Key, float] = {
            (BrokerFigure.LAG, "billing"): billing,
            (BrokerFigure.LAG, "mailer"): 190 - seconds // 30,
            (BrokerFigure.LAG, "reports"): 200 - seconds // 20,
            (BrokerFigure.LETTERS, "billing"): 0,
            (BrokerFigure.MEMBERS, "billing"): 1,
            (BrokerFigure.MEMBERS, "mailer"): 1,
            (BrokerFigure.DISK, TOTAL): 40e6,
        }
        series.add(now - seconds, counts, levels)


def _rates(seconds: float) -> dict[Key, float]:
    """The simulated rates so many seconds ago. Over the last ten minutes, all rates but those of visits fall to 0."""
    share = min(1.0, seconds / 600)
    return {
        (BrokerFigure.STORED, "orders"): share * (40 + 15 * sin(seconds / 420)),
        (BrokerFigure.STORED, "visits"): 30 + 8 * sin(seconds / 150),
        (BrokerFigure.STORED, "shipments"): share * (12 + 5 * sin(seconds / 600)),
        (BrokerFigure.DELIVERED, "billing"): share * (40 + 12 * sin(seconds / 380)),
        (BrokerFigure.DELIVERED, "analytics"): 30 + 8 * sin(seconds / 150),
    }


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the shop is not ready after {_PATIENCE_SECONDS:g} s")
        time.sleep(0.1)
