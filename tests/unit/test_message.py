"""Messages: which ones may be sent, and what a receiver sees of a stored row."""

import dataclasses
import json
import pickle
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common import message as message_module
from mqdb.common.compression import Compression, compress, compressed_flag
from mqdb.common.message import MAX_BODY_BYTES, Message, MessageQueue, SendStatus, check_message, stored_properties
from mqdb.common.property import read_properties
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import (
    BodyEmpty,
    BodyInvalid,
    BodyTooLarge,
    CompressedBodyBroken,
    IllegalState,
    NameInvalid,
    ParameterInvalid,
    PropertiesBroken,
    PropertiesTooLarge,
    PropertyInvalid,
    PropertyReserved,
    ResponseCode,
    SendGivenUp,
    TopicNotAllowed,
)
from mqdb_client.producer.sends.send_result import SendResult

QUEUE = MessageQueue("orders", "broker-a", 2)
ID = uuid.UUID("0a000001-1f90-00c0-ffee-001122334455")


# -- what a user writes -------------------------------------------------------------------------


anything = st.one_of(
    st.text(max_size=3), st.sampled_from(["TAGS", " ", "\ud800", "\1", "\u3000", "x" * 9_000]), st.none()
)


@given(st.dictionaries(anything, anything, max_size=4), anything, st.lists(anything, max_size=2))
def test_what_passes_the_quick_look_passes_the_full_check(properties: Any, tag: Any, keys: Any) -> None:
    given_message = Message("orders", b"x", tag, keys, properties)
    if message_module._is_plain(given_message):
        with patch.object(message_module, "_is_plain", return_value=False):
            check_message(given_message)


def test_a_text_body_is_sent_as_utf8() -> None:
    assert Message("orders", "Grüße 🚀").body == "Grüße 🚀".encode()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_of_any_kind_of_bytes_is_kept_as_bytes(kind: Callable[[bytes], Any]) -> None:
    body = Message("orders", kind(b"\x00\xff")).body

    assert type(body) is bytes
    assert body == b"\x00\xff"


@pytest.mark.parametrize("body", [None, 5, {"a": 1}])
def test_a_body_that_is_no_bytes_and_no_text_is_refused(body: Any) -> None:
    with pytest.raises(BodyInvalid, match=f"is {type(body).__name__}; give bytes") as caught:
        Message("orders", body)

    assert caught.value.code is ResponseCode.MESSAGE_ILLEGAL


def test_a_text_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(BodyInvalid, match=r"holds U\+D83D at 2"):
        Message("orders", "ab\ud83d")


@pytest.mark.parametrize(
    ("given_keys", "keys"),
    [
        ((), ()),
        ("", ()),
        ("UA1545", ("UA1545",)),
        ("UA1545 N14228", ("UA1545", "N14228")),
        ("  UA1545   N14228 ", ("UA1545", "N14228")),
        ("a\tb", ("a\tb",)),
        (["UA1545", "N14228"], ("UA1545", "N14228")),
        (iter("ab"), ("a", "b")),
    ],
)
def test_keys_are_words_however_they_are_given(given_keys: Any, keys: tuple[str, ...]) -> None:
    assert Message("orders", b"x", keys=given_keys).keys == keys


def test_keys_that_are_no_words_are_refused() -> None:
    given: Any = 17
    with pytest.raises(ParameterInvalid, match=r"^keys = .*17.*: give a sequence of words"):
        Message("orders", b"x", keys=given)


def test_an_empty_tag_is_no_tag() -> None:
    assert Message("orders", b"x", tag="") == Message("orders", b"x")
    assert Message("orders", b"x").tag is None


def test_a_message_keeps_what_it_was_made_with() -> None:
    properties = {"origin": "EWR"}
    message = Message("orders", b"x", properties=properties)

    properties["origin"] = "JFK"

    assert message.properties == {"origin": "EWR"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.topic = "other"  # type: ignore[misc]


def test_a_message_can_be_copied_hashed_and_sent_to_another_process() -> None:
    message = Message("orders", "x", "TagA", "k1 k2", {"a": "1"}, 7)

    changed = dataclasses.replace(message, topic="other")

    assert (changed.topic, changed.body, changed.keys, changed.flag) == ("other", b"x", ("k1", "k2"), 7)
    assert pickle.loads(pickle.dumps(message)) == message
    assert len({message, Message("orders", b"x", "TagA", ["k1", "k2"], {"a": "1"}, 7)}) == 1


class Paid(Message):
    """A message class of a user."""

    def __init__(self, order: int) -> None:
        super().__init__("orders", f"order {order}", tag="paid")
        self.order = order


def test_a_class_of_messages_may_have_attributes_and_arguments_of_its_own() -> None:
    paid = Paid(17)

    with_more = paid.with_properties({"a": "b"}).with_system_properties({"c": "d"})

    check_message(paid)
    assert (paid.order, with_more.body, with_more.tag) == (17, b"order 17", "paid")
    assert stored_properties(with_more) == {"a": "b", "c": "d"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        paid.tag = "refunded"  # type: ignore[misc]


def test_what_is_set_on_a_message_is_refused_with_the_way_to_do_it() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot set 'delay_level' .* give it to Message\(\)"):
        Message("orders", b"x").delay_level = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("tag", [0, False, b"", ()])
def test_a_tag_that_is_no_text_is_refused_also_if_it_is_falsy(tag: Any) -> None:
    with pytest.raises(PropertyInvalid, match="not text"):
        check_message(Message("orders", b"x", tag))


def test_the_repr_of_a_message_tells_everything_but_the_body() -> None:
    text = repr(Message("orders", b"secret" * 1000, "TagA", "k1", {"a": "1"}))

    assert text == (
        "Message(topic='orders', tag='TagA', keys=('k1',), properties={'a': '1'}, flag=0, body of 6,000 bytes)"
    )


# -- what may be sent ---------------------------------------------------------------------------


def test_a_message_with_everything_may_be_sent() -> None:
    check_message(Message("orders", b"\x00", "a tag", ["k1", "k2"], {"origin": "EWR", "Größe": " 7 "}, -1))


def test_a_body_of_exactly_4_mib_may_be_sent() -> None:
    check_message(Message("orders", bytes(4_194_304)))


def test_one_byte_more_than_4_mib_is_refused() -> None:
    with pytest.raises(BodyTooLarge, match="the body has 4,194,305 bytes, the limit is 4,194,304") as caught:
        check_message(Message("orders", bytes(MAX_BODY_BYTES + 1)))

    assert caught.value.code is ResponseCode.MESSAGE_ILLEGAL


@given(st.integers(1, 5_000), st.integers(1, 5_000))
def test_a_body_passes_exactly_when_it_keeps_the_limit(size: int, limit: int) -> None:
    message = Message("orders", bytes(size))

    if size <= limit:
        check_message(message, limit)
    else:
        with pytest.raises(BodyTooLarge) as caught:
            check_message(message, limit)
        assert (caught.value.size, caught.value.limit) == (size, limit)


@pytest.mark.parametrize("body", [b"", ""])
def test_an_empty_body_is_refused(body: bytes | str) -> None:
    with pytest.raises(BodyEmpty) as caught:
        check_message(Message("orders", body))

    assert caught.value.code is ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("topic", ["", "or ders", "o" * 128])
def test_an_illegal_topic_is_refused(topic: str) -> None:
    with pytest.raises(NameInvalid):
        check_message(Message(topic, b"x"))


def test_a_topic_of_the_broker_is_refused() -> None:
    with pytest.raises(TopicNotAllowed):
        check_message(Message("SCHEDULE_TOPIC_XXXX", b"x"))


def test_a_reserved_property_is_refused() -> None:
    with pytest.raises(PropertyReserved):
        check_message(Message("orders", b"x", properties={"DELAY": "3"}))


@pytest.mark.parametrize("flag", [-(2**31), 0, 2**31 - 1])
def test_a_flag_of_32_bits_may_be_sent(flag: int) -> None:
    check_message(Message("orders", b"x", flag=flag))


@pytest.mark.parametrize("flag", [-(2**31) - 1, 2**31, 1.5, "1", None, True])
def test_a_flag_that_is_no_number_of_32_bits_is_refused(flag: Any) -> None:
    with pytest.raises(ParameterInvalid, match=r"^flag = .*32 bits"):
        check_message(Message("orders", b"x", flag=flag))


# -- what is stored and answered ----------------------------------------------------------------


def test_tag_keys_and_id_are_properties_again_when_a_message_is_received() -> None:
    message = Message("orders", b"x", "TagA", ["k1", "k2"], {"origin": "EWR"})
    stored = stored_properties(message)
    queue = MessageQueue("orders", "a", 0)

    received = ReceivedMessage(queue, 0, 1, ID, "TagA", "k1 k2", stored, b"x", 0, 0, "here", 0, 0, 0, 0, 1)

    assert received.properties == {
        "origin": "EWR",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "0A0000011F9000C0FFEE001122334455",
    }
    assert stored == {"origin": "EWR"}


def test_an_id_that_is_no_uuid_is_a_property_and_not_its_hash() -> None:
    text = "FE80" * 14

    assert received(properties={"UNIQ_KEY": text}).properties == {**OWN, "UNIQ_KEY": text}


def test_queues_are_ordered_by_topic_broker_and_number() -> None:
    ordered = [
        MessageQueue("a", "broker-a", 9),
        MessageQueue("a", "broker-a", 10),
        MessageQueue("a", "broker-b", 0),
        MessageQueue("b", "broker-a", 0),
    ]

    assert sorted({*ordered}) == ordered
    assert str(ordered[1]) == "a@broker-a:10"


def test_the_four_statuses_are_those_of_rocketmq() -> None:
    assert [*SendStatus] == ["SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"]


def test_the_queue_offset_is_looked_up_when_first_asked_for_and_only_then() -> None:
    lookups = []

    def look_up() -> int:
        lookups.append(1)
        return 0

    result = SendResult(SendStatus.SEND_OK, ID.hex.upper(), QUEUE, 41, look_up)
    assert "41" in repr(result)
    assert lookups == []

    assert (result.queue_offset, result.queue_offset) == (0, 0)
    assert lookups == [1]


def test_a_result_survives_the_way_to_another_process_which_knows_the_offset_if_it_was_read() -> None:
    result = SendResult(SendStatus.SEND_OK, "AC", QUEUE, 7, lambda: 70)

    unread = pickle.loads(pickle.dumps(result))
    assert result.queue_offset == 70
    read = pickle.loads(pickle.dumps(result))

    assert (unread.status, unread.message_id, unread.queue, unread.log_pos) == (SendStatus.SEND_OK, "AC", QUEUE, 7)
    assert read.queue_offset == 70
    with pytest.raises(IllegalState, match="read it before the result is pickled"):
        _ = unread.queue_offset


def test_a_lookup_that_failed_is_tried_again() -> None:
    answers: list[SendGivenUp | int] = [SendGivenUp("orders", 3.0), 17]

    def look_up() -> int:
        answer = answers.pop(0)
        if isinstance(answer, SendGivenUp):
            raise answer
        return answer

    result = SendResult(SendStatus.SEND_OK, ID.hex.upper(), QUEUE, 41, look_up)

    with pytest.raises(SendGivenUp):
        _ = result.queue_offset
    assert result.queue_offset == 17


# -- what a receiver sees -----------------------------------------------------------------------


def received(**changes: Any) -> ReceivedMessage:
    row = {
        "queue": QUEUE,
        "queue_offset": 17,
        "log_pos": 4711,
        "msg_id": ID,
        "tag": "TagA",
        "keys": "k1 k2",
        "properties": '{"origin": "EWR"}',
        "body": b"secret",
        "born_time": 0,
        "store_time": 1_500_000,
        "born_host": "10.0.0.1",
        "reconsume_times": 3,
        "flag": 7,
        "sys_flag": 4,
        "min_offset": 5,
        "max_offset": 100,
    }
    return ReceivedMessage(**{**row, **changes})


def test_a_received_message_gives_back_the_row() -> None:
    message = received()

    assert (message.topic, message.queue, message.queue_offset, message.log_pos) == ("orders", QUEUE, 17, 4711)
    assert (message.body, message.tag, message.born_host) == (b"secret", "TagA", "10.0.0.1")
    assert (message.reconsume_times, message.flag, message.sys_flag) == (3, 7, 4)
    assert (message.min_offset, message.max_offset) == (5, 100)


@pytest.mark.parametrize("msg_id", [ID, ID.bytes])
def test_the_id_is_32_digits_from_a_uuid_and_from_its_bytes(msg_id: uuid.UUID | bytes) -> None:
    assert received(msg_id=msg_id).message_id == "0A0000011F9000C0FFEE001122334455"


@pytest.mark.parametrize(("text", "keys"), [(None, ()), ("", ()), ("k1", ("k1",)), ("k1 k2", ("k1", "k2"))])
def test_the_keys_are_the_words_of_the_column(text: str | None, keys: tuple[str, ...]) -> None:
    assert received(keys=text).keys == keys


#: The properties of `received()` that have columns.
OWN = {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "0A0000011F9000C0FFEE001122334455"}


@given(st.dictionaries(st.text().filter(lambda name: name not in OWN), st.text()))
def test_properties_are_the_same_in_every_form_that_postgresql_gives(properties: dict[str, str]) -> None:
    text = json.dumps(properties, ensure_ascii=False).encode("utf-8", "surrogatepass")

    for form in (properties, text, b"\x01" + text, json.dumps(properties)):
        assert received(properties=form).properties == properties | OWN


def test_properties_are_parsed_once() -> None:
    message = received()

    assert message.properties is message.properties


def test_properties_are_not_parsed_until_they_are_read() -> None:
    message = received(properties="{ no JSON")

    assert message.tag == "TagA"
    with pytest.raises(PropertiesBroken):
        _ = message.properties


def test_a_message_that_comes_again_shows_the_topic_that_it_was_sent_to() -> None:
    queue = MessageQueue("%RETRY%billing", "broker-a", 0)

    message = received(queue=queue, properties={"RETRY_TOPIC": "orders"})

    assert (message.topic, message.queue) == ("orders", queue)


def test_only_the_retry_queue_makes_a_message_a_retry() -> None:
    """Only in the retry queue is a message a retry.

    In the dead letter queue, for example, it still has the property.
    """
    queue = MessageQueue("%DLQ%billing", "broker-a", 0)

    assert received(queue=queue, properties={"RETRY_TOPIC": "orders"}).topic == "%DLQ%billing"


def test_what_somebody_has_sent_to_a_retry_topic_shows_that_topic() -> None:
    assert received(queue=MessageQueue("%RETRY%billing", "broker-a", 0)).topic == "%RETRY%billing"


def test_times_are_aware_and_exact() -> None:
    message = received(born_time=0, store_time=-1)

    assert message.born_time == datetime(2000, 1, 1, tzinfo=UTC)
    assert message.store_time == datetime(2000, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)
    assert message.born_time.tzinfo is UTC
    assert received(born_time=836_913_600_123_456).born_time.isoformat() == "2026-07-09T12:00:00.123456+00:00"


def test_a_received_message_survives_the_way_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(received()))

    assert repr(copy) == repr(received())
    assert copy.properties == {"origin": "EWR"} | OWN


def test_the_repr_of_a_received_message_tells_where_it_is_but_not_the_body() -> None:
    assert repr(received()) == (
        "ReceivedMessage(0A0000011F9000C0FFEE001122334455 at orders@broker-a:2 offset 17, "
        "tag='TagA', keys=('k1', 'k2'), reconsume_times=3, body of 6 bytes)"
    )


COMPRESSED = {"body": compress(b"secret", Compression.ZLIB), "sys_flag": compressed_flag(Compression.ZLIB)}


@pytest.mark.parametrize(
    ("schedule", "encoded_bytes"),
    [
        ({"delay_level": 18}, len("DELAY") + len("18") + 2),
        ({"deliver_at": 1_900_000_000_000}, len("TIMER_DELIVER_MS") + len("1900000000000") + 2),
    ],
)
def test_what_delays_a_message_counts_among_its_properties(schedule: dict[str, Any], encoded_bytes: int) -> None:
    largest = 32_722  # of one value whose name has one letter, beside a unique id

    check_message(Message("orders", "x", properties={"a": "v" * (largest - encoded_bytes)}, **schedule))
    with pytest.raises(PropertiesTooLarge, match="have 32,768 bytes"):
        check_message(Message("orders", "x", properties={"a": "v" * (largest - encoded_bytes + 1)}, **schedule))


def test_a_plain_body_is_the_stored_one() -> None:
    message = received()

    assert message.body is message.stored_body


def test_a_compressed_body_is_decompressed_once_and_kept_beside_the_stored_one() -> None:
    message = received(**COMPRESSED)

    assert message.body == b"secret"
    assert message.body is message.body
    assert message.stored_body == COMPRESSED["body"]


def test_a_body_is_not_decompressed_until_it_is_read() -> None:
    message = received(**COMPRESSED | {"body": b"no zlib"})

    assert message.tag == "TagA"
    assert "body of 7 bytes" in repr(message)
    with pytest.raises(CompressedBodyBroken, match="ZLIB"):
        _ = message.body


@pytest.mark.parametrize("is_read", [True, False])
def test_a_compressed_body_survives_the_way_to_another_process(is_read: bool) -> None:
    message = received(**COMPRESSED)
    if is_read:
        _ = message.body

    assert pickle.loads(pickle.dumps(message)).body == b"secret"


# -- properties that no producer writes ---------------------------------------------------------


def test_a_property_that_is_no_text_is_read_as_its_json() -> None:
    assert read_properties('{"a": 1, "b": {"c": null}, "d": "e"}') == {"a": "1", "b": '{"c": null}', "d": "e"}


_DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
_LONG = '{"a": ' + "9" * 5_000 + "}"


@pytest.mark.parametrize("text", [_DEEP, _LONG], ids=["deep", "long"])
def test_properties_that_python_does_not_read_are_an_error_of_mqdb(text: str) -> None:
    with pytest.raises(PropertiesBroken, match="cannot be read"):
        read_properties(text)
