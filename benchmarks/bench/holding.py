"""Transactions held open during a benchmark, which should not affect the other sessions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from benchmarks.bench import message_sample
from benchmarks.bench.clients import settings_for
from benchmarks.bench.testbed import Testbed
from mqdb.common.message import MessageQueue
from mqdb_client import Producer


@contextmanager
def held_transaction(testbed: Testbed) -> Iterator[None]:
    """A transaction with an id and a snapshot, open in an idle session: a forgotten BEGIN."""
    with _transaction(testbed):
        yield


@contextmanager
def held_send(testbed: Testbed) -> Iterator[None]:
    """A held transaction in which a producer has sent a message to each queue of the benchmark."""
    with (
        Producer("mqdb_bench_holder", settings=settings_for(testbed.broker)) as producer,
        _transaction(testbed) as connection,
    ):
        for topic in testbed.topics:
            for number in range(len(topic.queue_keys)):
                queue = MessageQueue(topic.name, testbed.broker.name, number)
                producer.send(message_sample.message(topic.name, number), queue=queue, connection=connection)
        yield


@contextmanager
def _transaction(testbed: Testbed) -> "Iterator[psycopg.Connection[Any]]":
    with psycopg.connect(testbed.broker.dsn, application_name="mqdb bench: holds a transaction") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT pg_current_xact_id()")
        yield connection
        connection.rollback()
