"""Hooks of a producer: when each is called, and the handling of their errors."""

import logging

import pytest

from mqdb.common.message import Message, MessageQueue, SendStatus
from mqdb.errors import ParameterInvalid
from mqdb_client import process_hooks
from mqdb_client.producer.sends.send_hooks import Hooks, SendMessageContext, SendMode
from mqdb_client.producer.sends.send_result import SendResult
from tests.fixtures.send_hooks import Forbidden, Recorder

QUEUE = MessageQueue("orders", "broker-a", 3)


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


def a_context(*bodies: str) -> SendMessageContext:
    messages = [Message("orders", body) for body in bodies or ("x",)]
    ids = [f"{number:032X}" for number in range(len(messages))]
    return SendMessageContext("shop", messages, ids, QUEUE, SendMode.SYNC, "10.0.0.1")


def a_result(message_id: str = "0" * 32) -> SendResult:
    return SendResult(SendStatus.SEND_OK, message_id, QUEUE, 17, lambda: 0)


def test_hooks_are_called_in_the_order_of_their_registration(hooks: Hooks, calls: list[str]) -> None:
    first, second = Recorder(calls, "first"), Recorder(calls, "second")
    for hook in (first, second):
        hooks.register_send_message_hook(hook)
        hooks.register_check_forbidden_hook(hook)

    hooks.begin(context := a_context())
    hooks.end(context, [a_result()])

    assert calls == [
        *("first check", "second check"),
        *("first before", "second before"),
        *("first after", "second after"),
    ]


def test_what_check_forbidden_raises_reaches_the_caller_and_ends_the_send(hooks: Hooks, calls: list[str]) -> None:
    hooks.register_send_message_hook(Recorder(calls, "sender"))
    hooks.register_check_forbidden_hook(Recorder(calls, "guard", fails_at="check"))
    hooks.register_check_forbidden_hook(Recorder(calls, "second guard"))

    with pytest.raises(Forbidden):
        hooks.begin(a_context())

    assert calls == ["guard check"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_send_hook_raises_is_logged_and_stops_nothing(
    hooks: Hooks, calls: list[str], moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.register_send_message_hook(Recorder(calls, "broken", fails_at=moment))
    hooks.register_send_message_hook(Recorder(calls, "sound"))

    with caplog.at_level(logging.ERROR):
        hooks.begin(context := a_context())
        hooks.end(context, [a_result()])

    assert calls == ["broken before", "sound before", "broken after", "sound after"]
    (record,) = caplog.records
    assert record.__dict__["hook"] == "broken"
    assert record.exc_info is not None
    assert record.exc_info[0] is Forbidden


def test_ctrl_c_in_a_hook_is_not_swallowed(hooks: Hooks, calls: list[str]) -> None:
    hooks.register_send_message_hook(Recorder(calls, "hook", fails_at="before", error=KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        hooks.begin(a_context())


def test_after_a_failure_hooks_see_the_error_and_no_result(hooks: Hooks, calls: list[str]) -> None:
    hooks.register_send_message_hook(Recorder(calls, "hook"))
    error = ConnectionError()

    hooks.begin(context := a_context())
    hooks.end(context, error=error)

    assert calls == ["hook before", "hook after"]
    assert (context.error, context.result) == (error, None)


def test_after_a_success_hooks_see_the_result(hooks: Hooks) -> None:
    hooks.begin(context := a_context())
    hooks.end(context, [result := a_result()])

    assert (context.error, context.result) == (None, result)


def test_a_batch_is_one_call_with_all_its_messages(hooks: Hooks, calls: list[str]) -> None:
    hooks.register_send_message_hook(Recorder(calls, "hook"))
    context = a_context("one", "two")

    hooks.begin(context)
    hooks.end(context, [a_result(each) for each in context.message_ids])

    assert calls == ["hook before", "hook after"]
    assert [message.body for message in context.messages] == [b"one", b"two"]
    assert [result.message_id for result in context.results] == context.message_ids
    assert context.message.body == b"one"
    assert context.broker_name == "broker-a"


def test_a_hook_finds_again_what_it_has_kept(hooks: Hooks) -> None:
    class Timer:
        hook_name = "timer"
        found: object = None

        def send_message_before(self, context: SendMessageContext) -> None:
            context.attributes["timer.begun"] = 17

        def send_message_after(self, context: SendMessageContext) -> None:
            self.found = context.attributes["timer.begun"]

    timer = Timer()
    hooks.register_send_message_hook(timer)

    hooks.begin(context := a_context())
    hooks.end(context)

    assert timer.found == 17


def test_hooks_are_empty_until_one_is_registered(calls: list[str]) -> None:
    with_send_hook, with_check_hook, without = Hooks(), Hooks(), Hooks()

    with_send_hook.register_send_message_hook(Recorder(calls, "hook"))
    with_check_hook.register_check_forbidden_hook(Recorder(calls, "hook"))

    assert (with_send_hook.is_empty, with_check_hook.is_empty, without.is_empty) == (False, False, True)


def test_what_is_no_hook_is_refused_when_it_is_registered(hooks: Hooks) -> None:
    with pytest.raises(ParameterInvalid, match="hook_name, send_message_after, send_message_before"):
        hooks.register_send_message_hook(object())
    with pytest.raises(ParameterInvalid, match="check_forbidden, hook_name"):
        hooks.register_check_forbidden_hook(object())


def test_what_a_hook_adds_does_not_change_the_message_and_replaces_nothing(hooks: Hooks) -> None:
    class Adds(Recorder):
        def send_message_before(self, context: SendMessageContext) -> None:
            context.extra_properties[1].update({"trace": "a hook's", "region": "north"})

    plain, full = Message("orders", "x"), Message("orders", "y", "paid", properties={"trace": "a user's"})
    hooks.register_send_message_hook(Adds([], "hook"))
    context = SendMessageContext("shop", [plain, full], ["0" * 32] * 2, QUEUE, SendMode.SYNC, "10.0.0.1")

    hooks.begin(context)
    first, second = context.messages_to_store()

    assert first is plain
    assert second.properties == {"trace": "a user's", "region": "north"}
    assert (second.body, second.tag, full.properties) == (b"y", "paid", {"trace": "a user's"})


def test_a_hook_of_the_process_is_for_producers_there_are_and_those_to_come(calls: list[str]) -> None:
    class All(Recorder):
        consume_message_before = consume_message_after = operation_before = operation_after = Recorder.check_forbidden

    hook, before = All(calls, "all"), Hooks()
    process_hooks.register(hook)  # type: ignore[arg-type]  # it is asked of sends only
    after = Hooks()
    for each in (before, after):
        each.begin(context := a_context())
        each.end(context)
    before.begin(context := a_context())
    process_hooks.unregister(hook)  # type: ignore[arg-type]
    before.end(context)  # what has begun ends
    after.begin(context := a_context())
    after.end(context)

    assert calls == ["all before", "all after"] * 3
    assert (before.is_empty, after.is_empty, Hooks().is_empty) == (True, True, True)
