"""The command line and the port of the embedded server."""

import socket

from mqdb.embedded import ports
from mqdb.embedded.tuning import TUNING, as_arguments, server_settings


def test_overrides_beat_the_tuning_but_not_the_address() -> None:
    settings = server_settings(5, {"max_connections": "7", "port": "6", "work_mem": "8MB"}, durable=True)

    assert settings["max_connections"] == "7"
    assert settings["work_mem"] == "8MB"
    assert settings["port"] == "5"
    assert settings["listen_addresses"] == "127.0.0.1"


def test_a_durable_server_keeps_the_defaults_that_protect_data() -> None:
    risky = {"fsync", "full_page_writes", "synchronous_commit"}

    assert not risky & set(server_settings(5, {}, durable=True))
    assert server_settings(5, {}, durable=False)["fsync"] == "off"


def test_settings_become_arguments() -> None:
    assert as_arguments({"a": "1", "b": "x y"}) == ["-c", "a=1", "-c", "b=x y"]
    assert len(as_arguments(TUNING)) == 2 * len(TUNING)


def test_a_wished_port_is_the_only_candidate() -> None:
    assert list(ports.candidates(7_000, previous=8_000)) == [7_000]


def test_without_a_wish_the_previous_port_comes_first_and_no_port_of_outgoing_connections_follows() -> None:
    first, *others = ports.candidates(0, previous=50_000)

    assert first == 50_000
    assert len(others) > 10
    assert max(others) < 32_768


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        assert not ports.is_free(port)
    assert ports.is_free(port)
