"""The forms of `mqdb group offset reset --to`."""

from datetime import UTC, datetime, timedelta

import pytest

from mqdb.broker.consumers.offset_reset import Boundary, ResetTarget
from mqdb.cli.offset_target import parse_target
from mqdb.errors import ParameterInvalid


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Boundary.EARLIEST),
        ("Latest", Boundary.LATEST),
        ("0", 0),
        ("20260714", 20_260_714),
        ("2026-07-14T09:30:00Z", datetime(2026, 7, 14, 9, 30, tzinfo=UTC)),
        ("2026-07-14T11:30+02:00", datetime(2026, 7, 14, 9, 30, tzinfo=UTC)),
        ("2026-07-14", datetime(2026, 7, 14).astimezone()),
        ("90m", timedelta(minutes=90)),
        ("@1784021400123", datetime(2026, 7, 14, 9, 30, 0, 123_000, tzinfo=UTC)),
        ("@-1", Boundary.LATEST),
    ],
)
def test_an_end_an_offset_or_a_time(text: str, target: ResetTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "@", "@x", "٣", "2026-13-01", "3w", "@" + "9" * 30])
def test_anything_else_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(ParameterInvalid, match=r"must be .*since 1970"):
        parse_target(text)
