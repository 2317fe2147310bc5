"""`mqdb --version`: the versions of this mqdb, and of the brokers that answer in time."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import typer

from mqdb import __version__
from mqdb.cli.options import start
from mqdb.errors import MqdbError, SettingInvalid

if TYPE_CHECKING:
    from mqdb.common.dsn import BrokerDsn

#: If a broker takes longer than this, its line says so.
_PATIENCE_SECONDS: Final = 3.0


def print_versions(context: typer.Context) -> None:
    """Print two lines about this mqdb, and one line for each broker in the settings.

    A wrong setting or an unreachable broker is reported as a line, not as an error.
    """
    from mqdb_client.admin.versions import known_revision

    print(f"mqdb {__version__}")
    print(f"schema {known_revision()}", flush=True)
    for line in _lines_of_brokers(context):
        print(line)


def _lines_of_brokers(context: typer.Context) -> list[str]:
    try:
        settings = start(context)
    except SettingInvalid as error:
        return [f"no broker was contacted: {error}"]
    from mqdb.settings.broker_list import brokers_of

    questions: list[_Question] = []

    def find() -> None:
        questions.extend(map(_Question, brokers_of(settings)))

    # An embedded broker that does not run has no versions, and a line about it would be of no use.
    finding = _begin(find)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    finding.join(_PATIENCE_SECONDS)
    return [question.answer(deadline) for question in questions]


class _Question:
    """Reads the versions of a broker in a thread, because a hanging read must not keep this process alive."""

    def __init__(self, broker: "BrokerDsn") -> None:
        self._broker = broker
        self._line = f"{broker.name}: no answer within {_PATIENCE_SECONDS:.0f} s"
        self._thread = _begin(self._ask)

    def _ask(self) -> None:
        from mqdb_client.admin.versions import versions_of

        try:
            found = versions_of(self._broker)
        except MqdbError as error:
            self._line = f"{self._broker.name}: {error}"
        else:
            schema = "no schema" if found.schema is None else f"schema {found.schema}"
            self._line = f"{self._broker.name}: {schema}, PostgreSQL {found.server}"

    def answer(self, deadline: float) -> str:
        """The line of the broker, at the deadline or earlier."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._line


def _begin(work: Callable[[], None]) -> threading.Thread:
    def quietly() -> None:
        with suppress(MqdbError):
            work()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    return thread
