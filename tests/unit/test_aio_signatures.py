"""Each asyncio class has the names and parameters of the corresponding class for threads."""

from inspect import iscoroutinefunction, isfunction, signature
from typing import Any

import pytest

from mqdb_client import (
    Admin,
    BrokerAdmin,
    LitePullConsumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TopicReader,
    TransactionProducer,
)
from mqdb_client.aio import (
    AsyncAdmin,
    AsyncBrokerAdmin,
    AsyncLitePullConsumer,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    AsyncTopicReader,
    AsyncTransactionProducer,
)

NOBODY = "postgresql://nobody@localhost/nothing"
SUBJECTS = [
    (type(ours), type(vars(Admin(dsn=NOBODY))[name]))
    for name, ours in vars(AsyncAdmin(dsn=NOBODY)).items()
    if type(ours).__name__.startswith("Async")
]
CLIENTS = [
    (AsyncProducer, Producer),
    (AsyncTransactionProducer, TransactionProducer),
    (AsyncPushConsumer, PushConsumer),
    (AsyncLitePullConsumer, LitePullConsumer),
    (AsyncSimpleConsumer, SimpleConsumer),
    (AsyncAdmin, Admin),
]
PAIRS = [*CLIENTS, (AsyncBrokerAdmin, BrokerAdmin), (AsyncTopicReader, TopicReader), *SUBJECTS]

#: Who wants a future of a send makes a task of it.
LEFT_OUT = {"send_async", "request_async"}
#: For threads beside the loops.
ADDED = {"synchronous"}


def parameters_of(function: Any) -> list[tuple[str, object, object]]:
    return [(each.name, each.kind, each.default) for each in signature(function).parameters.values()]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - LEFT_OUT


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__name__)
def test_an_asyncio_class_has_the_names_and_parameters_of_the_one_for_threads(ours: type, theirs: type) -> None:
    assert public(ours) - ADDED == public(theirs)
    for name in public(theirs):
        if isfunction(method := getattr(theirs, name)):
            assert parameters_of(getattr(ours, name)) == parameters_of(method), name


@pytest.mark.parametrize(("ours", "theirs"), CLIENTS, ids=lambda kind: kind.__name__)
def test_its_constructor_takes_the_same_options(ours: type, theirs: type) -> None:
    assert parameters_of(ours) == parameters_of(theirs)


@pytest.mark.parametrize(("ours", "theirs"), SUBJECTS, ids=lambda kind: kind.__name__)
def test_what_asks_a_broker_is_awaited(ours: type, theirs: type) -> None:
    # The generator, the context manager, and two functions that ask nobody.
    others = {"AsyncDeadLetters": {"read"}, "AsyncMessages": {"reading"}, "AsyncDoctor": {"checks", "exit_code"}}

    awaited = {name for name in public(ours) if iscoroutinefunction(getattr(ours, name))}

    assert awaited == public(theirs) - others.get(ours.__name__, set())


def test_every_subject_is_compared() -> None:
    assert len(SUBJECTS) == 15
