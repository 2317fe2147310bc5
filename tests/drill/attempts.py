"""The sends of a producer of the drill: a file with one line for each attempt."""

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Result(StrEnum):
    """The outcome of a send, as far as its producer knows it."""

    STORED = "STORED"
    #: It is not, and will not be.
    REFUSED = "REFUSED"
    #: Nobody could say.
    UNKNOWN = "UNKNOWN"


class Attempt(NamedTuple):
    """A send. A later attempt with the same name settles an UNKNOWN one."""

    #: Of time.monotonic(), which all processes of a machine share.
    began: float
    ended: float
    #: What is sent how, and by whom: see `producing`.
    client: str
    kind: str
    name: str
    result: Result
    #: The SendStatus, or the class of the error and what it says.
    detail: str


class AttemptFile:
    """A file that any number of threads write to and one process reads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._position = 0
        self._rest = b""

    def write(self, attempt: Attempt) -> None:
        os.write(self._file, (json.dumps(attempt) + "\n").encode())

    def read(self) -> Iterator[Attempt]:
        """The attempts that were added since the last call."""
        while text := os.pread(self._file, 1_000_000, self._position):
            self._position += len(text)
            *lines, self._rest = (self._rest + text).split(b"\n")
            for line in lines:
                began, ended, client, kind, name, result, detail = json.loads(line)
                yield Attempt(began, ended, client, kind, name, Result(result), detail)

    def close(self) -> None:
        os.close(self._file)
