"""Functions that can never return an answer are refused as listeners; all others are accepted."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NoReturn

import pytest

from mqdb.errors import ParameterInvalid
from mqdb_client import ConsumeConcurrentlyStatus, PushConsumer
from mqdb_client.aio import AsyncPushConsumer

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def print_all(messages: list[Any]) -> None:
    for message in messages:
        print(message)  # noqa: T201


def return_early(messages: list[Any]) -> None:
    with contextlib.suppress(ValueError):
        if not messages:
            return
        for message in messages:
            if message.tag:
                return
    raise ValueError


def return_none(_messages: list[Any]) -> None:
    try:
        return None  # noqa: RET501
    finally:
        print_all([])


async def only_await(messages: list[Any]) -> None:
    async with contextlib.AsyncExitStack():
        await messages[0].work()


def generate(messages: list[Any]) -> Generator[Any, None, Any]:
    yield from messages
    return SUCCESS


def inner_returns(_messages: list[Any]) -> None:
    def status() -> Any:
        return SUCCESS

    status()


def in_transaction(_messages: list[Any], connection: Any) -> None:
    connection.execute("SELECT 1")


NEVER: list[tuple[Callable[..., Any], dict[str, bool]]] = [
    (print_all, {}),
    (print_all, {"orderly": True}),
    (return_early, {}),
    (return_none, {}),
    (generate, {}),
    (inner_returns, {}),
    (in_transaction, {"exactly_once": True}),
    (in_transaction, {"exactly_once": True, "orderly": True}),
]


@pytest.mark.parametrize(("listener", "how"), NEVER, ids=lambda each: getattr(each, "__name__", None) or "-".join(each))
def test_a_function_that_never_returns_a_status_is_refused(listener: Callable[..., Any], how: dict[str, bool]) -> None:
    status = "ConsumeOrderlyStatus.SUCCESS" if "orderly" in how else "ConsumeConcurrentlyStatus.CONSUME_SUCCESS"
    consumer = PushConsumer("readers", "postgresql://nowhere")

    with pytest.raises(ParameterInvalid, match=f"return {status}$"):
        consumer.register_listener(listener, **how)


@pytest.mark.parametrize("how", [{}, {"orderly": True}], ids=["concurrent", "orderly"])
def test_so_is_a_coroutine_function(how: dict[str, bool]) -> None:
    with pytest.raises(ParameterInvalid, match="return Consume"):
        AsyncPushConsumer("readers", "postgresql://nowhere").register_listener(only_await, **how)


def one_of_two(messages: list[Any]) -> Any:
    if messages:
        return SUCCESS
    return None


def status_or_none(messages: list[Any]) -> Any:
    return messages or None


def none_in_a_name(messages: list[Any]) -> Any:
    answer = None
    for message in messages:
        answer = message.consume()
    return answer


def within(messages: list[Any]) -> Any:
    with contextlib.suppress(ValueError):
        return messages[0].consume()


def only_raise(_messages: list[Any]) -> None:
    raise NotImplementedError


def for_ever(messages: list[Any]) -> None:
    while True:
        print_all(messages)


def ends_the_program(messages: list[Any]) -> NoReturn:  # type: ignore[misc]
    print_all(messages)


def ends_the_program_too(messages: list[Any]) -> "NoReturn":  # type: ignore[misc]
    print_all(messages)


def with_context(_messages: list[Any], context: Any) -> None:
    context.ack_index = 0


def any_arguments(*_messages: Any) -> None: ...


class Bound:
    def consume(self, _messages: list[Any]) -> None: ...

    def __call__(self, _messages: list[Any]) -> None: ...


MAYBE = [
    one_of_two,
    status_or_none,
    none_in_a_name,
    within,
    only_raise,
    for_ever,
    ends_the_program,
    ends_the_program_too,
    with_context,
    any_arguments,
    Bound().consume,
    Bound(),
    functools.partial(print_all),
    lambda messages: print_all(messages),
    print,
]


@pytest.mark.parametrize("listener", MAYBE, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_all_others_are_accepted(listener: Callable[..., Any]) -> None:
    PushConsumer("readers", "postgresql://nowhere").register_listener(listener)


def test_an_asynchronous_function_that_may_answer_is_accepted() -> None:
    async def awaits(messages: list[Any]) -> Any:
        return await messages[0].consume()

    async def raises(_messages: list[Any]) -> None:
        raise NotImplementedError

    for listener in (awaits, raises):
        AsyncPushConsumer("readers", "postgresql://nowhere").register_listener(listener)


def test_an_asynchronous_generator_is_no_coroutine_function() -> None:
    async def generates(messages: list[Any]) -> AsyncIterator[Any]:
        yield messages

    with pytest.raises(ParameterInvalid, match="coroutine"):
        AsyncPushConsumer("readers", "postgresql://nowhere").register_listener(generates)  # type: ignore[arg-type]
