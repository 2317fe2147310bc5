"""The parts of the dashboard that need no broker: assets, times, bodies, fields, login_sessions."""

import base64
import hashlib
from datetime import UTC, datetime, timedelta, timezone

import pytest

from mqdb.dashboard import login_sessions
from mqdb.dashboard.assets import STATIC, VENDORED
from mqdb.dashboard.fields import Fields
from mqdb.dashboard.login_sessions import Sessions
from mqdb.dashboard.rendering import render
from mqdb.dashboard.views.bodies import edited_body, show_body
from mqdb.drawing.templating import age, line, path, time
from mqdb.errors import ParameterInvalid

OWN = {"dashboard.css", "dashboard.js", "icon.svg"}


def test_files_of_others_are_as_they_were_published_and_have_their_licences() -> None:
    theirs = {each.file for each in VENDORED} | {each.licence_file for each in VENDORED}

    assert {file.name for file in STATIC.iterdir()} == OWN | theirs
    for each in VENDORED:
        assert hashlib.sha256((STATIC / each.file).read_bytes()).hexdigest() == each.sha256, each.file
        assert each.version in each.file
        assert each.version in each.source


def test_no_page_loads_anything_from_elsewhere() -> None:
    page = render("login.html", has_password=True, fault=None)
    own = [(STATIC / name).read_text() for name in OWN - {"icon.svg"}]

    for text in (page, *own):
        assert "://" not in text
        assert "//cdn" not in text
    assert "style=" not in page
    assert "<script>" not in page


def test_a_moment_is_shown_in_utc_with_its_exact_value() -> None:
    moment = datetime(2026, 7, 14, 11, 30, 0, 250_000, timezone(timedelta(hours=2)))

    assert time(moment) == (
        '<time datetime="2026-07-14T09:30:00.250000+00:00" title="2026-07-14 09:30:00.250000 UTC">'
        "2026-07-14 09:30:00 UTC</time>"
    )
    assert time(None) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (119, "119 s"), (120, "2 m"), (7_200, "2 h"), (9e5, "10 d")],
)
def test_an_age_is_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_path_holds_any_name() -> None:
    assert path("b", "a", "topics", "%DLQ%x/y?", find="a&b", all=None) == "/b/a/topics/%25DLQ%25x%2Fy%3F?find=a%26b"


def test_a_line_has_no_control_characters_and_an_end() -> None:
    assert line("a\nb\x1b") == "a b\\x1b"
    assert len(line("x" * 1_000)) == 120


def test_a_body_is_text_if_it_is_text_and_cut_between_characters() -> None:
    assert show_body("zwei\r\nZeilen ö".encode())[:4] == (15, "zwei\r\nZeilen ö", True, True)
    assert show_body(b"\x1b[31m").text.startswith("00000000  1b 5b")
    assert show_body(b"\xff").is_text is False
    long = show_body(b"a" + "ö".encode() * 40_000)
    assert (long.size, long.is_text, long.is_whole) == (80_001, True, False)
    assert long.text.endswith("ö")
    broken = show_body(b"no zlib", sys_flag=1)
    assert broken.fault is not None


@pytest.mark.parametrize(
    ("original", "sent", "kept"),
    [(b"a\nb", "a\r\nc", b"a\nc"), (b"a\r\nb", "a\r\nc", b"a\r\nc"), (b"", "ö", "ö".encode())],
)
def test_an_edited_body_keeps_its_line_ends(original: bytes, sent: str, kept: bytes) -> None:
    assert edited_body(original, sent) == kept


def test_fields_are_read_or_refused() -> None:
    fields = Fields(
        [("n", " 7 "), ("empty", " "), ("t", "2026-07-14 09:30"), ("ago", "90m"), ("odd", "-1"), ("nul", "\0")]
    )

    assert fields.number("n") == 7
    assert [fields.number("empty"), fields.number("missing")] == [None, None]
    assert fields.text("empty") is None
    assert fields.time("t") == datetime(2026, 7, 14, 9, 30, tzinfo=UTC)
    assert fields.time("ago") == timedelta(minutes=90)
    for wrong in ("odd", "t"):
        with pytest.raises(ParameterInvalid):
            fields.number(wrong)
    with pytest.raises(ParameterInvalid):
        fields.time("odd")
    with pytest.raises(ParameterInvalid):
        fields.text("nul")


def test_a_session_ends_when_it_was_not_used_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Sessions("secret")
    key = known.log_in("ada", "secret")
    assert key is not None
    session = known.find(key)
    assert session is not None
    assert known.log_in("ada", "other") is None

    session.used_at -= login_sessions._IDLE_SECONDS - 60
    assert known.find(key) is session
    session.used_at -= login_sessions._IDLE_SECONDS + 1
    assert known.find(key) is None


def test_there_are_not_more_sessions_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_sessions, "_MOST_SESSIONS", 2)
    known = Sessions("secret")
    first, second = known.log_in("a", "secret"), known.log_in("b", "secret")
    assert first is not None
    assert second is not None
    known.find(first)
    known.log_in("c", "secret")

    assert known.find(first) is not None
    assert known.find(second) is None


def test_who_knows_a_name_has_not_the_session_of_its_password() -> None:
    known = Sessions("secret")
    assert known.of_header("Basic " + base64.b64encode(b"ann:secret").decode()) is not None

    assert known.find(f"basic {b'ann'.hex()}") is None
    assert known.find(b"ann".hex()) is None
