"""A new connection finds out which waits for a server are useless."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from sqlalchemy import Connection, Engine

from mqdb.errors import BrokerUnavailable
from mqdb.store.silence import Scissors, find_stranded


@dataclass(eq=False)
class Waiting:
    pid: int | None
    waits_since: float = 0.0

    def is_late(self, _now: float) -> bool:
        return self.waits_since == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("connection timeout expired", None),
        ("connection refused", None),
        ("FATAL:  the database system is starting up", None),
        ("FATAL:  the database system is shutting down", None),
        ("FATAL:  sorry, too many clients already", []),
        ('FATAL:  password authentication failed for user "x"', []),
    ],
)
def test_a_refusal_is_an_answer_and_a_server_that_starts_gives_none(text: str, found: list[Waiting] | None) -> None:
    def connect() -> AbstractContextManager[Connection]:
        raise BrokerUnavailable("nowhere", "see the cause") from psycopg.OperationalError(text)

    assert find_stranded(connect, {Waiting(1): 0.0}) == found


def test_a_new_connection_that_breaks_before_its_answer_says_nothing(engine: Engine) -> None:
    """A new connection that breaks before its answer proves nothing.

    This holds for each error class of the driver: the services take connections from an engine.
    """

    @contextmanager
    def connect() -> Iterator[Connection]:
        with engine.connect() as connection:
            scissors = Scissors.of(connection)
            scissors.cut()
            scissors.close()
            yield connection

    assert find_stranded(connect, {Waiting(1): 0.0}) is None


def test_only_a_wait_whose_backend_works_at_nothing_is_in_vain(engine: Engine) -> None:
    with engine.connect() as idle:
        pid = idle.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        stranded, pooled = Waiting(pid), Waiting(None)

        assert find_stranded(engine.connect, {stranded: 0.0, pooled: 0.0}) == [stranded]
        assert find_stranded(engine.connect, {stranded: time.monotonic()}) == []  # it has had an answer meanwhile


def test_with_a_stranded_connection_those_are_lost_that_are_idle_or_have_waited_less(engine: Engine) -> None:
    with engine.connect() as one, engine.connect() as other, engine.connect() as third:
        pids = [each.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for each in (one, other, third)]
        late, idle = Waiting(pids[0]), Waiting(pids[1], math.inf)
        waiting = Waiting(pids[2], time.monotonic())
        asked = {each: each.waits_since for each in (late, idle, waiting)}

        assert find_stranded(engine.connect, asked) == [late, idle, waiting]
        assert find_stranded(engine.connect, {idle: math.inf, waiting: waiting.waits_since}) == []  # nobody is late
