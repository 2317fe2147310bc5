"""Properties: which values a user may store, up to the exact size limit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.property import (
    MAX_PROPERTIES_BYTES,
    RESERVED_PROPERTIES,
    TAGS_CODE,
    FailureProperty,
    Property,
    check_properties,
    check_stored_properties,
)
from mqdb.errors import PropertiesTooLarge, PropertyInvalid, PropertyReserved, ResponseCode

RESERVED_BY_ROCKETMQ = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES
    CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""

# Neither blank nor any of the characters that RocketMQ's encoding needs for itself.
words = st.text(min_size=1).filter(
    lambda text: text.strip("".join(map(chr, range(33)))) and not set(text) & set("\1\2\0")
)


def size_of(properties: dict[str, str]) -> int:
    """The length of the encoded properties: name, U+0001, value, U+0002 for each."""
    return len("".join(f"{name}\1{value}\2" for name, value in properties.items()).encode())


def padded_to(size: int, padding: str = "x", **others: str) -> dict[str, str]:
    """Properties that take up `size` bytes together with the 42 bytes of UNIQ_KEY."""
    rest = size - 42 - size_of({**others, "padding": ""})
    whole, remainder = divmod(rest, len(padding.encode()))
    return {**others, "padding": padding * whole + "x" * remainder}


def check(properties: Any, tag: Any, keys: Any) -> None:
    """Check properties, tag and keys as `check_message` does."""
    check_properties(properties, tag, keys)
    own = {"TAGS": tag} if tag is not None else {}
    check_stored_properties(properties | own | ({"KEYS": " ".join(keys)} if keys else {}))


def test_the_reserved_names_are_those_of_rocketmq_of_failures_and_of_what_waits() -> None:
    assert set(RESERVED_BY_ROCKETMQ.split()) | set(FailureProperty) | {TAGS_CODE} == RESERVED_PROPERTIES


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(PropertyReserved, match=name) as caught:
        check({"origin": "EWR", name: "1"}, None, ())

    assert caught.value.code is ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("name", ["__SHARDINGKEY", "CHECK_IMMUNITY_TIME_IN_SECONDS", "keys", "Tags", "KEYS "])
def test_names_that_only_look_reserved_are_free(name: str) -> None:
    check({name: "1"}, None, ())


@given(st.dictionaries(words.filter(lambda name: name not in RESERVED_PROPERTIES), words, max_size=5))
def test_words_of_any_script_may_be_stored(properties: dict[str, str]) -> None:
    check(properties, "TagA", ("k1",))


@pytest.mark.parametrize("blank", ["", " ", "\t\r\n", "\x1f \x03"])
def test_a_blank_name_or_value_is_refused(blank: str) -> None:
    with pytest.raises(PropertyInvalid, match="the name is blank"):
        check({blank: "1"}, None, ())
    with pytest.raises(PropertyInvalid, match="property 'origin': the value is blank"):
        check({"origin": blank}, None, ())


@pytest.mark.parametrize("value", [5, None, b"EWR", True])
def test_a_value_that_is_no_text_is_refused_with_its_type(value: Any) -> None:
    with pytest.raises(PropertyInvalid, match=rf"'dep_delay': the value is {type(value).__name__}, .* use str\(\)"):
        check({"dep_delay": value}, None, ())


def test_a_name_that_is_no_text_is_refused_with_its_type() -> None:
    names: dict[Any, str] = {5: "five"}
    with pytest.raises(PropertyInvalid, match="'5': the name is int"):
        check(names, None, ())


@given(st.sampled_from("\0\1\2\ud800\udbff\udc00\udfff"), st.text(), st.text())
def test_a_character_that_cannot_be_stored_is_refused_everywhere(character: str, before: str, after: str) -> None:
    # A letter in front keeps the text from being blank.
    text = f"x{before}{character}{after}".replace(" ", "")
    with pytest.raises(PropertyInvalid, match=r"the name contains U\+"):
        check({text: "1"}, None, ())
    with pytest.raises(PropertyInvalid, match=r"the value contains U\+") as caught:
        check({"origin": text}, None, ())
    assert caught.value.name == "origin"
    with pytest.raises(PropertyInvalid, match=r"'TAGS': the value contains U\+"):
        check({}, text, ())
    with pytest.raises(PropertyInvalid, match=r"'KEYS': the value contains U\+"):
        check({}, None, ("k1", text))


def test_half_a_surrogate_pair_at_the_end_of_each_of_two_values_is_refused() -> None:
    # Put together they would be one good character.
    with pytest.raises(PropertyInvalid, match=r"'a': the value contains U\+D83D"):
        check({"a": "x\ud83d", "b": "\ude80x"}, None, ())


@pytest.mark.parametrize("key", ["", "a b", " ", "a "])
def test_a_key_is_one_word(key: str) -> None:
    with pytest.raises(PropertyInvalid, match=f"'KEYS': key '{key}' is empty or contains a blank"):
        check({}, None, ("k1", key))


@pytest.mark.parametrize("key", [5, None])
def test_a_key_that_is_no_text_is_refused_with_its_type(key: Any) -> None:
    with pytest.raises(PropertyInvalid, match=f"key {key} is {type(key).__name__}, not text"):
        check({}, None, (key,))


def test_a_tag_that_is_no_text_is_refused_with_its_type() -> None:
    tag: Any = 5
    with pytest.raises(PropertyInvalid, match="'TAGS': the tag is int, not text"):
        check({}, tag, ())


@pytest.mark.parametrize("padding", ["x", "ü", "標", "🚀"])
def test_32767_bytes_of_properties_may_be_stored_and_not_one_more(padding: str) -> None:
    check(padded_to(32_767, padding), None, ())

    with pytest.raises(PropertiesTooLarge, match="have 32,768 bytes encoded, the limit is 32,767") as caught:
        check(padded_to(32_768, padding), None, ())
    assert caught.value.code is ResponseCode.MESSAGE_ILLEGAL


@given(
    st.dictionaries(words.filter(lambda name: name not in {*RESERVED_PROPERTIES, "padding"}), words, max_size=4),
    st.none() | words,
    st.lists(words.map(lambda word: word.replace(" ", "_")), max_size=3),
)
def test_tag_keys_and_id_count_as_the_properties_that_they_become(
    properties: dict[str, str], tag: str | None, keys: list[str]
) -> None:
    system = {}
    if tag is not None:
        system[Property.TAGS.value] = tag
    if keys:
        system[Property.KEYS.value] = " ".join(keys)
    free = MAX_PROPERTIES_BYTES - size_of(system)

    check(padded_to(free, **properties), tag, keys)

    with pytest.raises(PropertiesTooLarge) as caught:
        check(padded_to(free + 1, **properties), tag, keys)
    assert caught.value.size == 32_768
