"""The client's public functions raise an mqdb error for arguments of a wrong type.

The functions never raise one of Python's own errors, or PostgreSQL's refusal of a value.
"""

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from mqdb.errors import MqdbError, ParameterInvalid, StorageRefused, shown
from mqdb_client import (
    Admin,
    DeadLetterFilter,
    LitePullConsumer,
    Message,
    MessageQueue,
    MessageSelector,
    Producer,
    PushConsumer,
    Redrive,
    Resolution,
    Rights,
    TransactionProducer,
    explain_selector,
    split_batches,
)
from mqdb_client.admin.subject import Subject
from tests.fixtures.postgres import Database

WRONG: tuple[Any, ...] = (
    5,
    "x",
    object(),
    None,
    [1],
    2.5,
    b"x",
    {"a": 1},
    -1,
    10**5_000,
    "x" * 100_000,
    "\udcff",
    "\0",
    float("nan"),
    [],
    MessageQueue("t", "b", 10**5_000),
)

#: What would end the client, wait for ever, or take a listener that the test does not have.
LEFT_OUT = {"run", "start", "shutdown"}


class Listener:
    """A transaction listener."""

    def execute_local_transaction(self, message: Any, argument: Any) -> Any:
        """Never called."""

    def check_local_transaction(self, message: Any) -> Any:
        """Never called."""


def methods(kind: type) -> list[str]:
    public = [name for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")]
    return [name for name in public if name not in LEFT_OUT]


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    named = inspect.signature(function).parameters.values()
    return [each for each in named if each.name != "self" and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]


def call(function: Callable[..., Any], good: dict[str, Any]) -> list[str]:
    """Call a function with each wrong value for each argument. Returns the errors that are not mqdb errors."""
    escaped = []
    for wrong in parameters(function):
        for value in WRONG:
            needed = {
                each.name: good.get(each.name, "x") for each in parameters(function) if each.default is each.empty
            }
            try:
                result = function(**needed | {wrong.name: value})
                if isinstance(result, Generator):
                    next(result, None)
                elif isinstance(result, AbstractContextManager):
                    with result:
                        pass
            except StorageRefused as error:
                escaped.append(f"{wrong.name}={shown(value)[:30]}: {error}")
            except MqdbError as error:
                if len(str(error)) > 5_000:
                    escaped.append(f"{wrong.name}: a sentence of {len(str(error)):,} characters")
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                escaped.append(f"{wrong.name}={shown(value)[:30]}: {type(error).__name__}: {str(error)[:80]}")
    return escaped


CONSTRUCTORS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (Producer, {"group": "g"}),
    (TransactionProducer, {"group": "g", "listener": Listener()}),
    (PushConsumer, {"group": "g"}),
    (LitePullConsumer, {"group": "g"}),
    (Message, {"topic": "t", "body": "b"}),
    (MessageSelector.by_sql, {}),
    (MessageSelector.by_tag, {}),
    (DeadLetterFilter, {}),
    (Rights, {}),
    (explain_selector, {}),
    (split_batches, {"messages": [Message("t", "b")]}),
]


@pytest.mark.parametrize(("function", "good"), CONSTRUCTORS, ids=lambda value: getattr(value, "__qualname__", ""))
def test_what_is_made_of_wrong_types_is_refused(function: Callable[..., Any], good: dict[str, Any]) -> None:
    assert call(function, good) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [Producer, PushConsumer, LitePullConsumer])
@pytest.mark.parametrize("is_started", [False, True], ids=["before the start", "started"])
def test_a_client_refuses_wrong_types(database: Database, kind: type, is_started: bool) -> None:
    good = {"message": Message("orders", "x"), "messages": [Message("orders", "x")], "topic": "orders"}
    escaped: dict[str, list[str]] = {}
    with ExitStack() as clients:
        client = kind("group", dsn=database.dsn)
        if is_started:
            if kind is PushConsumer:
                client.register_listener(lambda messages: None)
            if kind is not Producer:
                client.subscribe("orders")
            client.start()
            clients.callback(client.shutdown)
        for name in methods(kind):
            if found := call(getattr(client, name), good):
                escaped[name] = found

    assert escaped == {}


@pytest.mark.timeout(300)
def test_an_administrator_refuses_wrong_types(database: Database) -> None:
    good = {
        "topic": "orders",
        "message": Message("orders", "x"),
        "wanted": DeadLetterFilter(),
        "message_id": "0" * 32,
        "to": 0,
        "work": lambda broker: broker.name,
        "resolution": Resolution.COMMIT,
        "positions": [],
        "how": Redrive(""),
        "findings": [],
        "level": 1,
        "queue_offset": 0,
    }
    escaped: dict[str, list[str]] = {}
    with Admin(database.dsn) as admin:
        admin.topics.create("orders")
        for subject in [admin, *vars(admin).values()]:
            if not isinstance(subject, Subject):
                continue
            for name in methods(type(subject)):
                if found := call(getattr(subject, name), good):
                    escaped[f"{type(subject).__name__}.{name}"] = found

    assert escaped == {}


def test_a_callback_that_cannot_be_called_is_refused_before_anything_is_sent(database: Database) -> None:
    with Producer("senders", dsn=database.dsn) as producer:
        with pytest.raises(ParameterInvalid, match=r"callback = 'x': must be a callable that takes \(future\)"):
            producer.send_async(Message("orders", "x"), callback="x")  # type: ignore[arg-type]

        assert database.rows("SELECT count(*) FROM mqdb.commit_log") == [(0,)]
