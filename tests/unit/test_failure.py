"""The failure of a message, as the message's copy in the dead letter queue describes it."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.failure import MAX_TEXT_BYTES, MAX_TRACEBACK_BYTES, Failure
from mqdb.common.property import FailureProperty, Property, check_stored_properties
from mqdb.errors import ParameterInvalid

HOST = "10.0.0.7@314#159"
NOON = datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC)


def raised(error: Exception) -> Exception:
    """The error with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def failure(*, message: str = "", traceback: str = "") -> Failure:
    return Failure("ValueError", message, traceback, HOST, NOON)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_an_exception_is_told_with_class_message_and_traceback() -> None:
    told = Failure.of(raised(ParameterInvalid("amount", -1, "must be positive")), HOST, NOON).properties(1)

    assert told["MQDB_FAILURE_EXCEPTION"] == "mqdb.errors.ParameterInvalid"
    assert told["MQDB_FAILURE_MESSAGE"] == "amount = -1: must be positive"
    assert told["MQDB_FAILURE_TRACEBACK"].startswith("Traceback (most recent call last):\n")
    assert told["MQDB_FAILURE_TRACEBACK"].endswith("mqdb.errors.ParameterInvalid: amount = -1: must be positive\n")


def test_a_class_of_python_itself_is_named_as_in_a_traceback() -> None:
    assert Failure.of(raised(KeyError("sku")), HOST, NOON).exception == "KeyError"


def test_a_class_within_a_class_is_named_with_it() -> None:
    class Refused(Exception):
        pass

    assert Failure.of(Refused(), HOST, NOON).exception.endswith(
        ".test_a_class_within_a_class_is_named_with_it.<locals>.Refused"
    )


def test_an_exception_that_cannot_be_shown_is_still_told() -> None:
    told = Failure.of(raised(Unprintable()), HOST, NOON).properties(1)

    assert told["MQDB_FAILURE_EXCEPTION"].endswith(".Unprintable")
    assert "failed" in told["MQDB_FAILURE_MESSAGE"]


def test_a_cause_is_part_of_the_traceback() -> None:
    try:
        try:
            raise KeyError("sku")
        except KeyError as missing:
            raise LookupError("no such article") from missing
    except LookupError as error:
        told = Failure.of(error, HOST, NOON)

    assert "KeyError: 'sku'" in told.traceback


def test_who_failed_and_when_is_told_in_utc() -> None:
    afternoon = NOON.astimezone(timezone(timedelta(hours=2)))

    told = Failure.later(HOST, afternoon).properties(1)

    assert told["MQDB_FAILURE_HOST"] == HOST
    assert told["MQDB_FAILURE_TIME"] == "2024-02-29T12:00:00.123+00:00"


def test_a_failure_without_an_exception_has_a_name() -> None:
    assert Failure.later(HOST, NOON).exception == "RECONSUME_LATER"
    assert Failure.timeout(HOST, NOON, timedelta(minutes=15)).exception == "TIMEOUT"
    assert Failure.no_answer(None, HOST, NOON).exception == "None"


def test_a_timeout_says_how_long_it_was() -> None:
    told = Failure.timeout(HOST, NOON, timedelta(minutes=15))

    assert told.message == "the listener has not returned after 0:15:00"


def test_an_answer_that_is_no_status_is_shown() -> None:
    assert Failure.no_answer(True, HOST, NOON).message == "the listener returned True, which is not a status"


def test_the_first_delivery_is_attempt_1() -> None:
    assert Failure.later(HOST, NOON).properties(1)["MQDB_FAILURE_ATTEMPT"] == "1"


def test_nothing_of_an_earlier_failure_stays() -> None:
    earlier = Failure.of(raised(ValueError("first")), HOST, NOON).properties(1)
    latest = Failure.later(HOST, NOON).properties(2)

    assert earlier | latest == latest


def test_a_message_is_cut_at_1_kib_and_keeps_its_beginning() -> None:
    told = failure(message="first" + "x" * 2_000).properties(1)["MQDB_FAILURE_MESSAGE"]

    assert told == "first" + "x" * 1_019


def test_a_traceback_is_cut_at_8_kib_and_keeps_its_end() -> None:
    told = failure(traceback="x" * 10_000 + "last").properties(1)["MQDB_FAILURE_TRACEBACK"]

    assert told == "x" * 8_188 + "last"


def test_texts_of_the_full_size_are_kept_whole() -> None:
    whole = failure(message="m" * 1_024, traceback="t" * 8_192)

    told = whole.properties(1)

    assert (told["MQDB_FAILURE_MESSAGE"], told["MQDB_FAILURE_TRACEBACK"]) == (whole.message, whole.traceback)


@pytest.mark.parametrize("character", ["é", "€", "🐘"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_split_by_a_cut(character: str, shift: int) -> None:
    pad, many = "x" * shift, character * 9_000
    size = len(character.encode())

    told = failure(message=pad + many, traceback=many + pad).properties(1)

    assert told["MQDB_FAILURE_MESSAGE"] == pad + character * ((1_024 - shift) // size)
    assert told["MQDB_FAILURE_TRACEBACK"] == character * ((8_192 - shift) // size) + pad


@pytest.mark.parametrize("code_point", [0, 1, 2, 0xD800, 0xDFFF])
def test_what_no_property_may_hold_is_replaced(code_point: int) -> None:
    text = f"a{chr(code_point)}b"

    told = Failure(text, text, text, text, NOON).properties(1)

    for name in ("EXCEPTION", "MESSAGE", "TRACEBACK", "HOST"):
        assert told[f"MQDB_FAILURE_{name}"] == "a\N{REPLACEMENT CHARACTER}b"


# Any code point, also those that `st.text` leaves out.
anything = st.lists(st.integers(0, 0x10FFFF), max_size=3_000).map(lambda points: "".join(map(chr, points)))


@given(anything, anything)
def test_any_text_can_be_stored(message: str, traceback: str) -> None:
    told = failure(message=message, traceback=traceback).properties(1)

    assert len(told["MQDB_FAILURE_MESSAGE"].encode()) <= MAX_TEXT_BYTES
    assert len(told["MQDB_FAILURE_TRACEBACK"].encode()) <= MAX_TRACEBACK_BYTES
    check_stored_properties(told)


def test_the_names_are_none_of_rocketmq() -> None:
    assert set(Property).isdisjoint(FailureProperty)
