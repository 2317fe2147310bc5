"""Standard output and standard error: on a terminal, control characters are printed as numbers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from mqdb.common.printable import printable


class _Shielded:
    """A terminal for `print`. rich, whose colours are control characters too, writes to the terminal itself."""

    def __init__(self, terminal: TextIO) -> None:
        #: rich looks for this name, and escapes itself what is not its own: `mqdb.cli.console`.
        self.rich_proxied_file = terminal

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def shielded() -> Iterator[None]:
    """Shield the terminals among the standard streams. Bytes that go to their `buffer` are the caller's business."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    for name, stream in before.items():
        if stream is not None and stream.isatty():
            setattr(sys, name, _Shielded(stream))
    try:
        yield
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)
