"""Ctrl-C stops a redrive cleanly."""

import signal
import time

import pytest

from mqdb.cli.dlq.redriver import DelayedInterruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_somebody_asks(number: signal.Signals) -> None:
    with DelayedInterruption() as interruption:
        assert not interruption.is_heard_within(0)
        signal.raise_signal(number)
        assert interruption.is_heard_within(60)
        assert interruption.is_heard


def test_a_signal_is_passed_on_when_nothing_is_half_done() -> None:
    with DelayedInterruption() as interruption:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interruption.pass_on()


def test_without_a_signal_there_is_nothing_to_pass_on() -> None:
    with DelayedInterruption() as interruption:
        pass

    interruption.pass_on()


def test_a_second_ctrl_c_does_not_wait() -> None:
    with DelayedInterruption():
        signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_behind_it_signals_do_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGINT)

    with DelayedInterruption():
        assert signal.getsignal(signal.SIGINT) != before

    assert signal.getsignal(signal.SIGINT) == before


def test_time_that_is_over_is_not_waited_for() -> None:
    begin = time.monotonic()

    with DelayedInterruption() as interruption:
        assert not interruption.is_heard_within(-60)

    assert time.monotonic() - begin < 30
