"""A warm send passes through few files: a newcomer who follows it reads only the files listed here."""

import sys
from pathlib import Path
from types import FrameType

import mqdb
import mqdb_client
from mqdb_client import Message
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.producers import producer_of

MOST_FILES = 10

_ROOTS = tuple(str(Path(str(package.__file__)).parent) + "/" for package in (mqdb, mqdb_client))


def test_a_warm_send_enters_few_files(database: Database) -> None:
    create_topic(database.connect(), "orders", 4)
    walk: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_ROOTS) and walk[-1:] != [file]:
            walk.append(file)

    with producer_of(database.dsn) as producer:
        message = Message("orders", b"x" * 100, tag="paid", keys="k1")
        for _ in range(10):
            producer.send(message)
        sys.setprofile(note)
        try:
            producer.send(message)
        finally:
            sys.setprofile(None)

    files = list(dict.fromkeys(walk))
    shown = "\n".join(files)
    sys.stdout.write(f"{len(files)} files, {len(walk) - 1} changes of file:\n{shown}\n")
    assert len(files) <= MOST_FILES
