"""Tracebacks of failed listeners: frames of the user's code are shown, and frames of libraries are folded."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

_FRAME: Final = re.compile(r'  File "(.+)", line \d+')

#: Files of Python itself, of installed packages and of the client.
_LIBRARY: Final = re.compile(r"[\\/](?:site-packages|dist-packages|lib[\\/]python3[^\\/]*|mqdb_client)[\\/]|^<frozen ")


class TracebackPart(NamedTuple):
    """Consecutive lines of a traceback."""

    text: str
    library_frames: int
    """The number of frames if all are frames of libraries; else 0."""


def traceback_parts(text: str) -> list[TracebackPart]:
    """The parts of a traceback, in its order. A text without a frame of the user's code is one part.

    Only tracebacks of Python are split. A traceback of another language is one part.
    """
    frames = list(_frames(text))
    if all(is_library for _, is_library in frames if is_library is not None):
        return [TracebackPart(text, 0)] if text else []
    parts = []
    for is_library, run in groupby(frames, key=lambda frame: bool(frame[1])):
        texts = [lines for lines, _ in run]
        parts.append(TracebackPart("\n".join(texts), len(texts) if is_library else 0))
    return parts


def _frames(text: str) -> Iterator[tuple[str, bool | None]]:
    """The lines of each frame, and whether the frame is in a library; None for lines between frames."""
    lines: list[str] = []
    is_library: bool | None = None
    for line in text.splitlines():
        found = _FRAME.match(line)
        if lines and (found or not (is_library is None or line.startswith("  "))):
            yield "\n".join(lines), is_library
            lines = []
        if not lines:
            is_library = None if found is None else _LIBRARY.search(found[1]) is not None
        lines.append(line)
    if lines:
        yield "\n".join(lines), is_library
