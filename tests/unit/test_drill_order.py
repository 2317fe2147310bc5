"""The order that the drill requires of an orderly consumer.

Each string lists the offsets of its deliveries as digits.
"""

import pytest

from tests.drill.judge import Verdict
from tests.drill.order import Place, disorder
from tests.fixtures.fault_group import Event, Record

STORED = {f"m{offset}": [Place("drill:0", offset)] for offset in range(10)}


def delivery(offset: int, name: str | None = None, queue: str = "drill:0") -> Record:
    return Record(50.0, Event.SUCCEEDED, queue, offset, "haproxy-orderly", name or f"m{offset}")


def wrong(offsets: str) -> str:
    return "".join(str(each.queue_offset) for each in disorder(map(delivery, map(int, offsets)), STORED))


@pytest.mark.parametrize("offsets", ["", "01234", "0123 123456", "012 12 12345", "0112233", "012 1 2 12 3"])
def test_messages_may_come_again_in_their_order(offsets: str) -> None:
    assert wrong(offsets.replace(" ", "")) == ""


@pytest.mark.parametrize(
    ("offsets", "found"), [("01324", "2"), ("0123546", "4"), ("0132", "2"), ("02314", "1"), ("0134 0234", "2")]
)
def test_no_message_comes_for_the_first_time_after_a_later_one(offsets: str, found: str) -> None:
    assert wrong(offsets.replace(" ", "")) == found


def test_what_comes_again_goes_on_in_order() -> None:
    assert wrong("01232104") == "10"
    assert wrong("012321104") == "10"


def test_a_delivery_that_a_fail_over_has_taken_back_does_not_count() -> None:
    taken_back = [delivery(5, "lost"), delivery(6, "lost too"), delivery(7, "m4")]

    assert disorder([delivery(3), *taken_back, delivery(4), delivery(5)], STORED) == []


def test_each_queue_has_an_order_of_its_own() -> None:
    stored = {**STORED, "other": [Place("drill:1", 9)]}

    assert disorder([delivery(0), delivery(9, "other", "drill:1"), delivery(1)], stored) == []


def test_a_verdict_complains_of_a_wrong_order() -> None:
    verdict = Verdict("switchover", "with shutdown-sessions", disorder={"haproxy-orderly": [delivery(2)]})

    assert verdict.complaints() == ["out of order for haproxy-orderly: 1, first m2 at 2 of drill:0"]
