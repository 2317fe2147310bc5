"""Errors of user code are described, traversed and logged, whatever they are."""

import logging
import traceback
from collections.abc import Callable

import pytest

from mqdb.common import user_error
from mqdb.common.failure import Failure
from mqdb.common.user_error import MAX_CHARACTERS, MAX_LINKED_ERRORS, chain_of, describe, log_error, reason_of
from mqdb_client import LocalTransactionState
from mqdb_client.aio import ids_that_may_be_stored
from mqdb_client.consumer.listeners.consume_hooks import ConsumeHooks, ConsumeReturnType
from mqdb_client.consumer.listeners.direct_consumption import DirectResult
from mqdb_client.tracing import Tracing
from mqdb_client.transaction.transaction_listener import TransactionAnswer
from tests.fixtures.odd_errors import ODD_ERRORS, Falsy, Unreadable, long_chain, ring
from tests.fixtures.spans import Spans, attributes
from tests.unit.test_direct_consumption import judged
from tests.unit.test_failure import HOST, NOON
from tests.unit.test_process_hooks import RETRIES, retry

odd_ones = pytest.mark.parametrize("make", ODD_ERRORS.values(), ids=ODD_ERRORS.keys())


def raised(error: BaseException) -> BaseException:
    """The error with a traceback."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever it is
        return caught


@odd_ones
def test_each_is_described_in_plain_texts_of_bounded_size(make: Callable[[], BaseException]) -> None:
    error = raised(make())

    text = describe(error)

    assert [type(each) for each in text[:3]] == [str, str, str]
    assert max(map(len, text[:3])) <= MAX_CHARACTERS
    assert text.exception.rpartition(".")[2] == type.__dict__["__qualname__"].__get__(type(error))
    assert "raise error\n" in text.traceback
    assert reason_of(error) == (f"{text.exception}: {text.message}" if text.message else text.exception)


@odd_ones
def test_each_can_be_stored_as_a_failure(make: Callable[[], BaseException]) -> None:
    told = Failure.of(raised(make()), HOST, NOON).properties(1)

    assert all(told.values()) or told["MQDB_FAILURE_MESSAGE"] == ""


class Records(logging.Handler):
    """The records of a separate logger: a pytest report cannot hold lone surrogates."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = logging.Logger("shop")
        self.logger.addHandler(self)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@odd_ones
def test_each_is_logged_once_with_its_traceback(make: Callable[[], BaseException]) -> None:
    handler = Records()

    log_error(handler.logger, "listener failed in %(queue)s", raised(make()), {"queue": "orders-0"})

    [record] = handler.records
    shown = logging.Formatter().format(record)
    assert shown.startswith("listener failed in orders-0\n")
    assert "raise error" in shown
    assert len(shown) < 20 * MAX_CHARACTERS
    assert vars(record)["queue"] == "orders-0"
    assert record.filename == "test_user_error.py"


def test_a_usual_error_is_logged_as_it_is() -> None:
    handler, error = Records(), raised(KeyError("sku"))

    log_error(handler.logger, "listener failed in %(queue)s", error, {"queue": "orders-0"})

    assert handler.records[0].exc_info == (KeyError, error, error.__traceback__)


def test_a_usual_error_is_described_as_python_shows_it() -> None:
    error = raised(KeyError("sku"))

    assert describe(error).traceback == "".join(traceback.format_exception(error))


def test_each_error_of_a_ring_is_in_its_chain_once() -> None:
    assert [str(each) for each in chain_of(ring())] == ["first", "second"]


def test_a_chain_has_an_end() -> None:
    assert len(chain_of(long_chain())) == MAX_LINKED_ERRORS + 1


def test_a_chain_has_causes_contexts_and_the_members_of_groups() -> None:
    cause, context, member = ValueError("cause"), ValueError("context"), Falsy("member")
    group = ExceptionGroup("group", [member])
    group.__cause__, group.__context__ = cause, context

    assert [id(each) for each in chain_of(group)] == list(map(id, (group, cause, context, member)))


# -- who looks at errors of users -----------------------------------------------------------------


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Some errors have texts of 20 MB, which would only fill a report."""
    caplog.set_level(logging.CRITICAL)


@odd_ones
@pytest.mark.usefixtures("quiet")
def test_a_message_that_somebody_asks_a_listener_to_consume_tells_of_each(make: Callable[[], BaseException]) -> None:
    def listener() -> object:
        raise make()

    told = judged(listener)

    assert told.result is DirectResult.CR_THROW_EXCEPTION
    assert told.remark
    assert "raise make()" in told.traceback


@odd_ones
@pytest.mark.usefixtures("quiet")
def test_a_transaction_listener_that_raises_it_does_not_know(make: Callable[[], BaseException]) -> None:
    with TransactionAnswer("check_local_transaction", "senders", "orders", "17", BaseException) as answer:
        raise make()

    assert answer.state is LocalTransactionState.UNKNOWN


class RaisingHook:
    hook_name = "raising"

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make

    def consume_message_before(self, _context: object) -> None:
        raise self._make()

    consume_message_after = consume_message_before


@odd_ones
@pytest.mark.usefixtures("quiet")
def test_a_hook_that_raises_it_stops_no_other_and_a_span_tells_of_it(make: Callable[[], BaseException]) -> None:
    spans, hooks = Spans(), ConsumeHooks("readers")
    hooks.register(RaisingHook(make))
    hooks.register(Tracing(spans.tracer))

    context = hooks.begin(RETRIES, [retry("orders")])
    assert context is not None
    error = raised(make())
    hooks.end(context, None, ConsumeReturnType.EXCEPTION, error)

    [span] = spans("process orders")
    [event] = span.events
    assert event.attributes is not None
    assert attributes(span)["error.type"] == event.attributes["exception.type"] == describe(error).exception


def test_ids_are_looked_for_in_a_ring_of_errors() -> None:
    first, second = ValueError("first"), TimeoutError("second")
    first.__cause__, second.__cause__ = second, first

    assert ids_that_may_be_stored(first) == ()
    vars(second)["mqdb_message_ids"] = ["17"]
    assert ids_that_may_be_stored(first) == ("17",)


def test_an_attribute_that_cannot_be_read_is_none() -> None:
    assert user_error.attribute_of(Unreadable(), "sqlstate") is None
