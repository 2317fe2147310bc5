"""The script that takes the screenshots of the dashboard."""

import struct
from pathlib import Path

import pytest

from tests.fixtures.browser import chromium
from website import screenshots


@pytest.mark.long
def test_a_picture_is_made(tmp_path: Path) -> None:
    chromium()
    screenshots.main([str(tmp_path), "--page", "letter", "--scheme", "dark", "--width", "400"])

    [picture] = tmp_path.iterdir()
    assert picture.name == "dashboard-letter-dark-400.png"
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, _ = struct.unpack(">II", content[16:24])
    assert width == 400


def test_each_picture_in_the_repository_is_used_and_made_by_the_script() -> None:
    pictures = sorted(picture.file_name for picture in screenshots.used())

    assert pictures == sorted(path.name for path in screenshots.IMAGES.glob("*.png"))
