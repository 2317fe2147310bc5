"""A held connection while there is none: who waits for it, and for how long."""

import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest

from mqdb.errors import BrokerUnavailable
from mqdb_client.held_connection import IMPATIENT_SECONDS, HeldConnection, NotRun
from tests.fixtures.threads import Doing


@pytest.fixture
def silent() -> Iterator[HeldConnection]:
    """One whose server says nothing to the attempt to connect."""
    answered = threading.Event()

    def connect() -> NoReturn:
        answered.wait()
        raise BrokerUnavailable("here", "no answer after all")

    held = HeldConnection(connect, "here")
    held.open()
    yield held
    answered.set()
    held.close()


def run(held: HeldConnection, seconds: float, is_patient: bool) -> float:
    """How long it takes to say that there is no connection."""
    began = time.monotonic()
    with pytest.raises(NotRun) as not_run:
        held.run(lambda _: None, began + seconds, is_patient)
    if not is_patient:
        assert isinstance(not_run.value.error, BrokerUnavailable)
        assert "here" in str(not_run.value.error)
    return time.monotonic() - began


def test_one_who_is_not_patient_waits_a_moment_and_the_next_not_at_all(silent: HeldConnection) -> None:
    assert IMPATIENT_SECONDS <= run(silent, 20, is_patient=False) < 5
    assert silent.is_lost
    assert run(silent, 20, is_patient=False) < IMPATIENT_SECONDS


def test_those_who_are_not_patient_do_not_wait_one_after_the_other(silent: HeldConnection) -> None:
    began = time.monotonic()
    doings = [Doing(lambda: run(silent, 20, is_patient=False)) for _ in range(50)]
    for doing in doings:
        doing.result()

    assert time.monotonic() - began < 20 * IMPATIENT_SECONDS


def test_a_patient_one_who_waits_does_not_hold_up_one_who_is_not(silent: HeldConnection) -> None:
    patient = Doing(lambda: run(silent, 3, is_patient=True))

    assert run(silent, 20, is_patient=False) < 2
    assert patient.result() >= 3


def test_the_end_does_not_wait_for_those_who_wait_for_a_connection() -> None:
    def connect() -> NoReturn:
        raise BrokerUnavailable("here", "refused")

    held = HeldConnection(connect)
    held.open()
    waiting = Doing(lambda: run(held, 20, is_patient=True))
    held.close()

    assert waiting.result() < 5
