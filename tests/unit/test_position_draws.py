"""Code that draws log positions by hand takes a transaction id first: `mqdb/sql/dispatch/take_places.sql`, rule 2."""

import re
from pathlib import Path

import mqdb

_ROOT = Path(mqdb.__file__).parent

#: What draws under the lock of dispatch, or behind the id in the order of the columns.
_OTHERWISE = {"sql/dispatch/take_places.sql", "store/log/commit_log.py"}


def test_an_id_is_taken_before_a_position() -> None:
    draws = {
        path.relative_to(_ROOT).as_posix(): text
        for path in _ROOT.rglob("*")
        if path.suffix in (".py", ".sql")
        if re.search(r"nextval\W.{0,20}mqdb\.log_pos", text := path.read_text())
    }

    assert draws.keys() >= _OTHERWISE
    without = [
        name
        for name, text in draws.items()
        if name not in _OTHERWISE and not re.search(r"pg_current_xact_id\(\)[^;]{0,150}nextval", text)
    ]
    assert without == []
