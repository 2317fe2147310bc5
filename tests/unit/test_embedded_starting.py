"""Whether a broker is starting in a home, and how long a client waits for it."""

import logging
from pathlib import Path

import pytest

from mqdb.embedded import mark_starting, wait_while_starting
from mqdb.embedded.home import Home
from mqdb.embedded.starting import is_starting
from mqdb.errors import BrokerUnavailable
from mqdb.settings import load_settings
from mqdb.settings.broker_list import brokers_of
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing


def test_a_broker_is_starting_until_it_says_otherwise(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert not is_starting(home)

    with mark_starting(home):
        assert is_starting(home)
        with mark_starting(home):  # another one, whose mark is the first one's
            assert is_starting(home)
        assert is_starting(home)

    assert not is_starting(home)
    assert home.starting_file.stat().st_mode & 0o777 == 0o600


def test_a_client_waits_until_it_is_ready_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path / "home")
    with mark_starting(home):
        waiting = Doing(lambda: wait_while_starting(home))
        wait_until(lambda: caplog.messages)
    waiting.result()

    assert caplog.messages == [f"waiting for a broker that is starting in home {home.path}"]


def test_a_client_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqdb.embedded.starting.PATIENCE_SECONDS", 0.05)
    with (
        mark_starting(Home(tmp_path)),
        pytest.raises(BrokerUnavailable, match="a broker is starting in this home, but is not ready yet; try again"),
    ):
        brokers_of(load_settings(home=tmp_path))


def test_where_nobody_starts_nobody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(BrokerUnavailable, match="no broker runs in this home"):
        brokers_of(load_settings(home=tmp_path))

    assert caplog.messages == []
