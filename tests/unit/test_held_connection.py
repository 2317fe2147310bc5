"""A held connection while it is lost: which callers wait for it, and for how long."""

import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest

from mqdb.errors import BrokerUnavailable
from mqdb_client.producer.append import held_connection
from mqdb_client.producer.append.held_connection import IMPATIENT_SECONDS, HeldConnection, NotRun
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing, is_awaited, refuse_threads


@pytest.fixture
def answered() -> threading.Event:
    """An event that makes the server of `silent` refuse the connection attempt."""
    return threading.Event()


@pytest.fixture
def silent(answered: threading.Event) -> Iterator[HeldConnection]:
    """A held connection whose server does not answer the connection attempt."""

    def connect() -> NoReturn:
        answered.wait()
        raise BrokerUnavailable("here", "no answer after all")

    held = HeldConnection(connect, "here")
    held.open()
    yield held
    answered.set()
    held.close()


def run(held: HeldConnection, seconds: float, is_patient: bool) -> float:
    """The seconds until the call reports that there is no connection."""
    began = time.monotonic()
    with pytest.raises(NotRun) as not_run:
        held.run(lambda _: None, began + seconds, is_patient)
    if not is_patient:
        assert isinstance(not_run.value.error, BrokerUnavailable)
        assert "here" in str(not_run.value.error)
    return time.monotonic() - began


def test_one_who_is_not_patient_waits_a_moment_and_the_next_not_at_all(
    silent: HeldConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IMPATIENT_SECONDS <= run(silent, 60, is_patient=False) < 20
    assert silent.is_lost
    monkeypatch.setattr(held_connection, "IMPATIENT_SECONDS", 60.0)
    assert run(silent, 60, is_patient=False) < 20


def test_those_who_are_not_patient_do_not_wait_one_after_the_other(silent: HeldConnection) -> None:
    began = time.monotonic()
    doings = [Doing(lambda: run(silent, 20, is_patient=False)) for _ in range(50)]
    for doing in doings:
        doing.result()

    assert time.monotonic() - began < 20 * IMPATIENT_SECONDS


def test_a_patient_one_who_waits_does_not_hold_up_one_who_is_not(
    silent: HeldConnection, answered: threading.Event
) -> None:
    patient = Doing(lambda: run(silent, 60, is_patient=True))
    wait_until(lambda: is_awaited(silent._changed))

    assert run(silent, 60, is_patient=False) < 20
    assert is_awaited(silent._changed)
    answered.set()
    silent.close()
    patient.result()


def test_a_patient_one_waits_for_as_long_as_it_may(silent: HeldConnection) -> None:
    run(silent, 60, is_patient=False)

    assert run(silent, 1, is_patient=True) >= 1


def test_the_end_does_not_wait_for_those_who_wait_for_a_connection() -> None:
    def connect() -> NoReturn:
        raise BrokerUnavailable("here", "refused")

    held = HeldConnection(connect)
    held.open()
    waiting = Doing(lambda: run(held, 20, is_patient=True))
    held.close()

    assert waiting.result() < 5


def test_where_no_thread_can_be_started_it_can_be_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def connect() -> NoReturn:
        asked.set()
        raise BrokerUnavailable("here", "nobody is there")

    held = HeldConnection(connect, "here")
    with monkeypatch.context() as patch:
        refuse_threads(patch, "mqdb-connection-keeper")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            held.open()
    held.open()

    assert asked.wait(10)
    held.close()


def test_why_there_was_no_connection_is_known_for_a_while_also_when_there_is_one(
    silent: HeldConnection, answered: threading.Event
) -> None:
    began = time.monotonic()
    assert silent.trouble_since(began) is None

    answered.set()
    wait_until(lambda: silent.why_lost is not None)

    assert "no answer after all" in str(silent.trouble_since(began))
    assert silent.trouble_since(time.monotonic() + 60) is None
