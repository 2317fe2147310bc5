"""An error that no command foresees is printed as one line, which says how to see its traceback."""

import pytest

from mqdb.cli import app


@pytest.fixture(autouse=True)
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        raise NotImplementedError("can't parse\ninterval")

    monkeypatch.setattr(app, "_command", command)
    monkeypatch.delenv("MQDB_DEBUG", raising=False)


def test_it_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["serve"]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("mqdb: unexpected NotImplementedError in app.py, line ")
    assert "can't parse | interval; MQDB_DEBUG=1 shows the traceback" in line


def test_with_mqdb_debug_it_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQDB_DEBUG", "1")

    with pytest.raises(NotImplementedError):
        app.run(["serve"])
