"""Groups: which names are legal, and which settings are valid."""

from typing import Any

import pytest

from mqdb.common.group import (
    DEFAULT_CONSUMER,
    DEFAULT_PRODUCER,
    ConsumeFromWhere,
    MessageModel,
    check_group,
    check_group_name,
)
from mqdb.errors import NameInvalid, ParameterInvalid


@pytest.mark.parametrize("name", ["g", "billing-eu_1", "%a|b%", "g" * 120])
def test_a_group_is_named_with_the_characters_of_a_topic(name: str) -> None:
    check_group_name(name)


def test_120_characters_are_the_longest_name() -> None:
    with pytest.raises(NameInvalid, match="has 121 characters; allowed are 1 to 120 characters of A-Z"):
        check_group_name("g" * 121)


@pytest.mark.parametrize("name", ["", " ", "a.b", "gruppe ä"])
def test_an_illegal_name_is_refused_as_a_group(name: str) -> None:
    with pytest.raises(NameInvalid) as caught:
        check_group_name(name)

    assert (caught.value.kind, caught.value.name) == ("group", name)


def test_a_consumer_may_not_use_the_default_consumer_group() -> None:
    with pytest.raises(NameInvalid, match="'DEFAULT_CONSUMER': is reserved; choose"):
        check_group_name("DEFAULT_CONSUMER")
    check_group_name("DEFAULT_PRODUCER", reserved=DEFAULT_CONSUMER)


def test_a_producer_may_not_use_the_default_producer_group() -> None:
    with pytest.raises(NameInvalid, match="'DEFAULT_PRODUCER': is reserved; choose"):
        check_group_name("DEFAULT_PRODUCER", reserved=DEFAULT_PRODUCER)


def test_the_names_of_the_choices_are_those_that_a_database_row_holds() -> None:
    assert [*MessageModel] == ["CLUSTERING", "BROADCASTING"]
    assert [*ConsumeFromWhere] == ["LAST_OFFSET", "FIRST_OFFSET", "TIMESTAMP"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retry_queue_nums", 0),
        ("retry_queue_nums", 65_537),
        ("retry_max_times", -1),
        ("retry_max_times", 2**31),
        ("retry_max_times", "16"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value(setting: str, value: Any) -> None:
    with pytest.raises(ParameterInvalid, match=f"^{setting} = .*: must be ") as caught:
        check_group("billing", **{setting: value})

    assert str(caught.value.value) == str(value)


@pytest.mark.parametrize(("queues", "times"), [(1, 0), (65_536, 2**31 - 1)])
def test_the_ends_of_the_ranges_are_legal(queues: int, times: int) -> None:
    check_group("billing", queues, times)


def test_a_group_with_an_illegal_name_cannot_be_configured() -> None:
    with pytest.raises(NameInvalid):
        check_group("bil ling")
