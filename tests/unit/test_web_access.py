"""The user behind a request, and the delays for clients that guess passwords."""

import asyncio
from typing import Any

import pytest

from mqdb.common.http_address import parse_networks
from mqdb.web.guesses import Guesses
from mqdb.web.proxies import Proxies

PROXIES = Proxies("X-Forwarded-User", parse_networks("10.0.0.7, 192.168.4.0/24, fd00::/8"))


def scope(peer: str, *names: bytes, **headers: str) -> dict[str, Any]:
    """A request, as the server passes it on."""
    given = [(b"x-forwarded-user", each) for each in names]
    given += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "client": (peer, 1), "headers": given}


@pytest.mark.parametrize("peer", ["10.0.0.7", "192.168.4.200", "fd00::1", "::ffff:10.0.0.7"])
def test_a_trusted_proxy_names_the_person(peer: str) -> None:
    assert PROXIES.person(scope(peer, "Jörg".encode())) == "Jörg"


@pytest.mark.parametrize("peer", ["10.0.0.8", "192.168.5.1", "::1", "::ffff:10.0.0.8", "a-socket", ""])
def test_nobody_else_does(peer: str) -> None:
    assert PROXIES.person(scope(peer, b"ada", x_forwarded_for="10.0.0.7", forwarded="for=10.0.0.7")) is None
    assert PROXIES.person({"type": "http", "client": None, "headers": [(b"x-forwarded-user", b"ada")]}) is None
    assert Proxies(None, ()).person(scope(peer, b"ada")) is None


@pytest.mark.parametrize("names", [(), (b"",), (b" ",), (b"ada", b"bob"), (b"\xff",), (b"a" * 101,), (b"a\x1b",)])
def test_a_name_is_one_and_is_not_mended(names: tuple[bytes, ...]) -> None:
    assert PROXIES.person(scope("10.0.0.7", *names)) is None


def test_after_five_wrong_passwords_in_a_minute_each_password_waits() -> None:
    now, waits = 0.0, list[float]()

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    guesses = Guesses(lambda: now, pause)

    def waits_after(moment: float) -> bool:
        nonlocal now
        now = moment
        before = len(waits)
        asyncio.run(guesses.wait())
        return len(waits) > before

    for moment in (0, 10, 20, 30, 40):
        assert not waits_after(moment)
        guesses.note_wrong()
    assert waits_after(59)
    assert not waits_after(61)
    guesses.note_wrong()
    assert waits_after(61)
    assert set(waits) == {1.0}
