"""App: which functions may be listeners, their arguments, and the listeners that share a group."""

import asyncio
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, make_dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Annotated, Any, NoReturn, assert_type
from uuid import uuid4

import pytest
from annotated_types import Gt
from pydantic import BaseModel
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from mqdb.common.failure import Failure
from mqdb.common.message import Message, MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BodyUnreadable, ListenerMissing, NameInvalid, ParameterInvalid
from mqdb_client import App, ConsumeConcurrentlyContext, ConsumeFromWhere, ConsumeOrderlyContext, exponential
from mqdb_client.app.app_consumers import AppConsumers
from mqdb_client.app.arguments import Arguments
from mqdb_client.app.listener_group import ListenerGroup
from mqdb_client.producer.sends.send_result import SendResult


@dataclass
class Order:
    number: int
    paid: bool = False


class Shipment(BaseModel):
    order: int


def received(
    body: bytes = b"{}",
    *,
    topic: str = "orders",
    tag: str | None = None,
    properties: dict[str, str] | None = None,
    reconsume_times: int = 0,
) -> ReceivedMessage:
    queue = MessageQueue(topic, "broker-a", 0)
    return ReceivedMessage(
        queue, 0, 1, uuid4(), tag, "17", properties or {}, body, 0, 0, "here", reconsume_times, 3, 0, 0, 1
    )


def given(function: Callable[..., Any], message: ReceivedMessage) -> list[Any]:
    """The arguments that a function receives; the function appends them to the list `got`."""
    got.clear()
    Arguments(function, exactly_once=False).call(message)
    return list(got)


got: list[Any] = []


def test_annotations_say_what_a_function_is_called_with() -> None:
    message = received(b'{"number": 17, "paid": true}', properties={"colour": "red", "TRACE_ON": "1"})

    def all_kinds(
        order: Order,
        text: str,
        raw: bytes,
        table: dict[str, int],
        sent: Message,
        /,
        whole: ReceivedMessage,
        *,
        also: Order,
    ) -> None:
        got.extend((order, text, raw, table, sent, whole, also))

    order, text, raw, table, sent, whole, also = given(all_kinds, message)

    assert order == also == Order(17, True)
    assert (text, raw, table) == ('{"number": 17, "paid": true}', message.body, {"number": 17, "paid": 1})
    assert (sent.topic, sent.keys, sent.properties, sent.flag) == ("orders", ("17",), {"colour": "red"}, 3)
    assert whole is message


def test_a_parameter_without_an_annotation_gets_the_message_and_one_with_a_default_is_left_alone() -> None:
    message = received(b'{"order": 4}')

    def plain(message, attempts=3):  # type: ignore[no-untyped-def]
        got.extend((message, attempts))

    def model(shipment: Shipment, dry: bool = False) -> None:
        got.extend((shipment.order, dry))

    assert given(plain, message) == [message, 3]
    assert given(model, message) == [4, False]
    assert given(lambda: got.append("called"), message) == ["called"]


@pytest.mark.parametrize(
    ("body", "wanted", "reason"),
    [
        (b"{", "Order", "Invalid JSON"),
        (b"{}", "Order", "number: Field required"),
        (b'{"number": "secret"}', "Order", "number: Input should be a valid integer"),
        (b"\xff", "text", "can't decode byte 0xff"),
    ],
)
def test_what_cannot_be_read_is_named_without_its_content(body: bytes, wanted: str, reason: str) -> None:
    def of_order(order: Order) -> None: ...

    def of_text(text: str) -> None: ...

    with pytest.raises(BodyUnreadable, match=reason) as caught:
        given(of_text if wanted == "text" else of_order, received(body))
    assert caught.value.wanted == wanted
    assert "secret" not in str(caught.value)


def of_whole(order: Order) -> None: ...
def of_numbers(numbers: list[int]) -> None: ...


@pytest.mark.parametrize("function", [of_whole, of_numbers])
def test_no_traceback_shows_a_body_that_cannot_be_read(function: Callable[..., Any]) -> None:
    body = json.dumps(["secret"] * 10).encode()
    with pytest.raises(BodyUnreadable) as caught:
        given(function, received(body))
    failure = Failure.of(caught.value, "here", datetime.now(UTC))
    assert "secret" not in failure.traceback.replace('["secret"]', "")  # the line above
    if function is of_numbers:
        assert failure.message.endswith("; and 5 more")


class Caller:
    def __call__(self, order: Order) -> None:
        got.append(order.number)

    def method(self, order: Order) -> None:
        got.append(order.number)


class AsyncCaller:
    async def __call__(self, order: Order) -> None:
        got.append(order.number)


def with_shop(shop: str, order: Order, currency: str = "EUR") -> None:
    got.append(order.number)


def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapping(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapping


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Caller(), "Caller"),
        (Caller().method, "Caller.method"),
        (AsyncCaller(), "AsyncCaller"),
        (partial(with_shop, "books"), "with_shop"),
        (partial(with_shop, shop="books"), "with_shop"),
        (wrapper(Caller().method), "Caller.method"),
    ],
)
def test_whatever_can_be_called_is_a_listener(function: Callable[..., Any], name: str) -> None:
    app = App("shop")
    app.listener("orders", group="billing")(function)
    (group,) = app.groups()
    got.clear()

    called = group.callback([received(b'{"number": 4}')], ConsumeConcurrentlyContext(MessageQueue("orders", "a", 0)))
    if inspect.iscoroutine(called):
        asyncio.run(called)

    assert got == [4]
    assert group.listeners[0].name == f"{__name__}.{name}"


async def of_order_later(order: Order) -> None: ...


def yielding(order: Order) -> Iterator[int]:
    yield order.number


@pytest.mark.parametrize("function", [wrapper(of_order_later), lambda order: of_order_later(order), wrapper(yielding)])
def test_what_nobody_runs_is_a_failure(function: Callable[..., Any]) -> None:
    with pytest.raises(ParameterInvalid, match="which is never run; write async def"):
        given(function, received(b'{"number": 4}'))


def test_constraints_of_annotations_hold() -> None:
    def some(numbers: Annotated[list[Annotated[int, Gt(0)]], "of orders"], raw: Annotated[bytes, "as sent"]) -> None:
        got.extend((numbers, raw))

    assert given(some, received(b"[1]")) == [[1], b"[1]"]
    with pytest.raises(BodyUnreadable, match="greater than 0"):
        given(some, received(b"[0]"))


def test_a_type_that_is_no_class_is_named_as_a_whole() -> None:
    def some(orders: Annotated[list[Order] | None, "of a day"]) -> None: ...

    with pytest.raises(BodyUnreadable, match="cannot be read as " + re.escape(f"list[{__name__}.Order] | None: body")):
        given(some, received(b"1"))


class Thing: ...


def of_nothing_json(thing: Thing) -> None: ...
def misspelled(orders: "asyncio.Tusk") -> None: ...  # type: ignore[name-defined]
def annotated(annotation: Any) -> Callable[..., Any]:
    def some(order: Any) -> None: ...

    some.__annotations__ = {"order": annotation}
    return some


OfNoPython: Any = make_dataclass("OfNoPython", [("number", "a number")])


def with_context(messages: ReceivedMessage, context: ConsumeConcurrentlyContext) -> None: ...
def with_transaction(message: ReceivedMessage, connection: Connection) -> None: ...
def with_wrong_session(message: ReceivedMessage, session: AsyncSession) -> None: ...
async def with_wrong_connection(message: ReceivedMessage, connection: Connection) -> None: ...


@pytest.mark.parametrize(
    ("function", "exactly_once", "reason"),
    [
        (of_nothing_json, False, "'thing' is of a type that JSON cannot give"),
        (with_context, False, "'context' is a context, which only a listener of a consumer gets"),
        (yielding, False, "is a generator, of which a call runs nothing"),
        (dict, False, "cannot be read"),
        (lambda *arguments, **_: arguments, False, r"takes \*args, which do not say what it is called with"),
        (misspelled, False, "cannot be read: AttributeError: module 'asyncio' has no attribute 'Tusk'"),
        (annotated("Ordr"), False, "cannot be read: NameError: name 'Ordr' is not defined"),
        (annotated("an order"), False, "cannot be read: SyntaxError: .* got 'an order'"),
        (annotated(""), False, "its parameters or their annotations cannot be read"),
        (annotated("{}['order']"), False, "cannot be read: KeyError: 'order'"),
        (annotated(OfNoPython), False, "'order' is of a type that JSON cannot give: SyntaxError: "),
        (annotated({}), False, "'order' is of a type that JSON cannot give: "),
        (with_transaction, False, "takes a transaction; say exactly_once=True"),
        (with_wrong_session, True, "'session' is AsyncSession; give it Connection or Session"),
        (with_wrong_connection, True, "'connection' is Connection; give it AsyncConnection or AsyncSession"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(
    function: Callable[..., Any], exactly_once: bool, reason: str
) -> None:
    with pytest.raises(ParameterInvalid, match=reason):
        App("shop").listener("orders", group="billing", exactly_once=exactly_once)(function)


@dataclass
class Parcel:
    address: "Address"  # the class below


Invoice = make_dataclass("Invoice", [("lines", "list[Lien]")], namespace={"__module__": __name__})


class Credit(BaseModel):
    invoices: list[Invoice]  # type: ignore[valid-type]


@dataclass
class Address:
    street: str


def ship(parcel: Parcel) -> None: ...
def credit(messages: bytes, *, credit: Credit) -> None: ...


def test_a_type_whose_fields_cannot_be_read_keeps_the_application_from_starting() -> None:
    app = App("shop")
    app.listener("parcels", group="shipping")(ship)
    app.listener("credits", group="billing")(credit)

    AppConsumers(app, ("shipping",))
    with pytest.raises(ParameterInvalid, match=r"'credit' is of a type that JSON cannot give: .* name 'Lien'"):
        AppConsumers(app)


def test_decorated_functions_keep_their_types() -> None:
    app = App("shop")

    @app.listener("orders", group="billing")
    async def bill(order: Order) -> int:
        return order.number

    @app.listener("orders", group="audit")
    def audit(order: Order, dry: bool = False) -> str:
        return f"{order.number} {dry}"

    @app.cron("@daily")
    async def report() -> None: ...

    @app.cron("@daily")
    def tidy(message: ReceivedMessage) -> bool:
        return message.tag is None

    assert_type(asyncio.run(bill(Order(17))), int)
    assert_type(audit(Order(17), dry=True), str)
    assert_type(report(), Coroutine[Any, Any, None]).close()
    assert_type(tidy(received()), bool)


async def types_of_sends(app: App) -> None:
    """Send calls for mypy to check."""
    assert_type(app.send("orders", Order(17)), SendResult)
    assert_type(await app.asend("orders", {"number": 17}), SendResult)


async def in_loop(message: ReceivedMessage, connection: AsyncConnection) -> None: ...
def in_session(message: ReceivedMessage, session: Session) -> None: ...


def test_what_cannot_be_one_consumer_is_refused_with_both_names() -> None:
    app = App("shop")
    app.listener("orders", group="billing", tag="paid || refunded")(print_one)

    with pytest.raises(ParameterInvalid, match=r"print_one and .*print_other take it both"):
        app.listener("orders", group="billing", tag="refunded")(print_other)
    with pytest.raises(ParameterInvalid, match="each needs tags of its own"):
        app.listener("orders", group="billing")(print_other)
    with pytest.raises(ParameterInvalid, match=r"orderly.*differs between .*print_one and .*print_other"):
        app.listener("returns", group="billing", orderly=True)(print_other)
    with pytest.raises(ParameterInvalid, match="give tag or sql, not both"):
        app.listener("orders", group="audit", tag="a", sql="b = 1")
    exact = App("exact")
    exact.listener("orders", group="audit", exactly_once=True)(in_loop)
    with pytest.raises(ParameterInvalid, match="make all exactly-once listeners of group 'audit' such, or none"):
        exact.listener("returns", group="audit", exactly_once=True)(in_session)
    with pytest.raises(ParameterInvalid, match="has no listener of it; it has billing"):
        app.groups("nobody")


def print_one(message: ReceivedMessage) -> None:
    got.append(("one", message.tag))


def print_other(message: ReceivedMessage) -> None:
    got.append(("other", message.tag))


def test_listeners_of_one_topic_subscribe_together_and_get_their_own() -> None:
    app = App("shop")
    app.listener("orders", group="billing", tag="paid || refunded")(print_one)
    app.listener("orders", group="billing", tag="new")(print_other)
    (group,) = app.groups()
    got.clear()

    assert group.subscriptions == {"orders": "paid || refunded || new"}
    for tag in ("new", "refunded"):
        answer = group.call([received(tag=tag)], ConsumeConcurrentlyContext(MessageQueue("orders", "broker-a", 0)))
        assert answer == "CONSUME_SUCCESS"
    assert got == [("other", "new"), ("one", "refunded")]


def test_a_message_that_comes_again_goes_to_the_listener_of_its_topic() -> None:
    app = App("shop")
    app.listener("orders", group="billing")(print_one)
    app.listener("returns", group="billing")(print_other)
    (group,) = app.groups()
    got.clear()

    message = received(topic="%RETRY%billing", properties={"RETRY_TOPIC": "returns"})
    group.call([message], ConsumeConcurrentlyContext(message.queue))

    assert got == [("other", None)]
    with pytest.raises(ListenerMissing, match="no listener for topic 'gone'"):
        group.call([received(topic="gone")], ConsumeConcurrentlyContext(message.queue))


def fail(message: ReceivedMessage) -> NoReturn:
    raise ValueError("no")


def group_of(**options: Any) -> ListenerGroup:
    app = App("shop")
    function = options.pop("function", fail)
    app.listener("orders", group="billing", **options)(function)
    return app.groups()[0]


@pytest.mark.parametrize(
    ("options", "reconsume_times", "most", "wait"),
    [
        ({}, 0, None, None),
        ({"retries": 5, "backoff": timedelta(seconds=7)}, 4, 5, timedelta(seconds=7)),
        ({"backoff": exponential(timedelta(seconds=1), factor=3)}, 2, None, timedelta(seconds=9)),
        ({"backoff": exponential(timedelta(seconds=1), limit=timedelta(seconds=9))}, 2_000, None, timedelta(seconds=9)),
        ({"dead_letter_on": (ValueError, KeyError), "retries": 9}, 0, 0, None),
        ({"dead_letter_on": LookupError}, 0, None, None),
    ],
)
def test_the_policy_of_the_listener_says_what_becomes_of_a_message(
    options: dict[str, Any], reconsume_times: int, most: int | None, wait: timedelta | None
) -> None:
    message = received(reconsume_times=reconsume_times)
    context = ConsumeConcurrentlyContext(message.queue)

    with pytest.raises(ValueError, match="no"):
        group_of(**options).call([message], context)

    assert (context.max_reconsume_times, context.delay_when_next_consume) == (most, wait)


def leave(message: ReceivedMessage) -> NoReturn:
    sys.exit("no")


def test_the_policy_holds_for_what_is_no_exception_too() -> None:
    context = ConsumeConcurrentlyContext(MessageQueue("orders", "broker-a", 0))

    with pytest.raises(SystemExit):
        group_of(function=leave, retries=2, backoff=timedelta(seconds=7)).call([received()], context)

    assert (context.max_reconsume_times, context.delay_when_next_consume) == (2, timedelta(seconds=7))


@pytest.mark.parametrize("factor", ["2", None, True, 0.5, 1_001, float("nan")])
def test_a_backoff_that_is_none_is_refused(factor: Any) -> None:
    with pytest.raises(ParameterInvalid, match=r"factor.*must be a number from 1 to 1,000"):
        exponential(timedelta(seconds=1), factor=factor)


def stop_iteration(message: ReceivedMessage) -> None:
    next(iter(()))


def test_a_thread_may_raise_what_no_future_takes() -> None:
    app = App("shop")
    app.listener("orders", group="billing")(stop_iteration)
    app.listener("returns", group="billing")(of_order_later)
    called = app.groups()[0].callback([received()], ConsumeConcurrentlyContext(MessageQueue("orders", "broker-a", 0)))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(asyncio.wait_for(called, 10))


def test_a_function_that_does_not_return_keeps_no_loop_from_ending() -> None:
    has_begun, may_return, returned = threading.Event(), threading.Event(), threading.Event()
    app = App("shop")

    @app.listener("orders", group="billing")
    def hang() -> None:
        has_begun.set()
        may_return.wait(10)
        returned.set()

    app.listener("returns", group="billing")(of_order_later)

    async def work() -> None:
        context = ConsumeConcurrentlyContext(MessageQueue("orders", "broker-a", 0))
        call = asyncio.create_task(app.groups()[0].callback([received()], context))
        await asyncio.to_thread(has_begun.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(work())

    assert not returned.is_set()
    may_return.set()


def test_in_order_a_message_waits_in_its_place() -> None:
    context = ConsumeOrderlyContext(MessageQueue("orders", "broker-a", 0))

    with pytest.raises(ValueError, match="no"):
        group_of(orderly=True, retries=2, backoff=timedelta(seconds=4)).call([received()], context)

    assert (context.max_reconsume_times, context.suspend_current_queue_time) == (2, timedelta(seconds=4))


def test_what_cannot_be_read_is_dead_at_once() -> None:
    def of_order(order: Order) -> None: ...

    app = App("shop")
    app.listener("orders", group="billing", retries=9)(of_order)
    context = ConsumeConcurrentlyContext(MessageQueue("orders", "broker-a", 0))

    with pytest.raises(BodyUnreadable):
        app.groups()[0].call([received(b"no")], context)
    assert context.max_reconsume_times == 0


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": True},
        {"backoff": timedelta(0)},
        {"backoff": 5},
        {"dead_letter_on": (BaseException,)},
        {"dead_letter_on": ("ValueError",)},
        {"orderly": "no"},
    ],
)
def test_options_of_a_listener_are_held_to_their_limits(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterInvalid, match=next(iter(options))):
        App("shop").listener("orders", group="billing", **options)(fail)


def test_crons_and_their_groups_are_named_after_the_function() -> None:
    app = App("shop")

    @app.cron("30 7 * * mon-fri", timezone="Europe/Berlin")
    def report() -> None: ...

    @app.cron("@hourly", name="tidy-up", topic="jobs", group="jobs")
    def tidy() -> None: ...

    assert [(each.name, each.topic, each.text) for each in app.crons()] == [
        ("report", "report", "30 7 * * mon-fri"),
        ("tidy-up", "jobs", "@hourly"),
    ]
    assert app.crons()[0].message().properties == {"MQDB_BODY": "text"}
    assert [group.name for group in app.groups()] == ["report", "jobs"]
    app.listener("jobs", group="audit")(print_one)
    assert [each.name for each in app.crons("jobs")] == ["tidy-up"]
    assert app.crons("audit") == []
    assert app.options_of("report") == {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET}
    assert app.options_of("jobs") == {}
    assert report() is None
    with pytest.raises(ParameterInvalid, match="another cron of the application has it"):
        app.cron("@daily")(report)
    with pytest.raises(ParameterInvalid, match=r"a tag cannot contain \|"):
        app.cron("@daily", name="a|b")(report)
    with pytest.raises(NameInvalid, match="<lambda>"):
        app.cron("@daily", topic="jobs", group="jobs")(lambda: None)
    with pytest.raises(ParameterInvalid, match="is not text; write for example"):
        app.cron(report)  # type: ignore[arg-type]


def test_the_name_of_an_application_is_that_of_its_module() -> None:
    assert App().name == "tests-unit-test_app"
    assert App("shop").name == "shop"
    with pytest.raises(NameInvalid):
        App("my shop")


def test_options_of_groups_are_those_of_a_consumer() -> None:
    app = App("shop")
    app.configure_group("billing", consume_thread_nums=50)
    app.configure_group("billing", pull_batch_size=10)

    assert app.options_of("billing") == {"consume_thread_nums": 50, "pull_batch_size": 10}
    with pytest.raises(ParameterInvalid, match="consume_message_batch_max_size"):
        app.configure_group("billing", consume_message_batch_max_size=2)
    with pytest.raises(ParameterInvalid, match="threads"):
        app.configure_group("billing", threads=2)


def test_options_of_a_group_that_has_no_listener_keep_the_application_from_starting() -> None:
    app = App("shop")
    app.configure_group("biling", consume_thread_nums=50)
    app.listener("orders", group="billing")(fail)
    app.listener("orders", group="audit")(fail)

    async def consume(*groups: str) -> None:
        async with app.consuming(*groups):
            pass

    for groups in ((), ("billing",)):
        with pytest.raises(ParameterInvalid, match=r"'biling': .* no listener of it; it has billing, audit"):
            asyncio.run(consume(*groups))


def test_the_property_of_the_form_is_set_by_the_application() -> None:
    with pytest.raises(ParameterInvalid, match=r"MQDB_BODY.*is set by the application, which knows what the body is"):
        App("shop").send("orders", Order(17), properties={"MQDB_BODY": "text"})
