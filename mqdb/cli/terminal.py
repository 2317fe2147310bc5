"""Standard output and standard error: on a terminal, control characters are printed as numbers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from mqdb.common.printable import printable


class _Shielded:
    """A terminal for `print`; rich, whose colours are control characters too, writes to the terminal directly."""

    def __init__(self, terminal: TextIO) -> None:
        #: rich looks for this name, and escapes foreign control characters itself: `mqdb.cli.console`.
        self.rich_proxied_file = terminal

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def shielded() -> Iterator[None]:
    """Shield the standard streams that are terminals. Bytes written to their `buffer` are not shielded."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    for name, stream in before.items():
        if stream is not None and stream.isatty():
            setattr(sys, name, _Shielded(stream))
    try:
        yield
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)
