"""The demo turns flights into messages, and its account of them detects every error."""

import csv
import json
from collections import Counter
from importlib.resources import files

import pytest

from mqdb.cli.demo.account import Delivery, GroupTally, Sent, count_disorder, latencies, percentile, settle
from mqdb.cli.demo.flights import load_flights, to_flight
from mqdb.common.message import check_message
from mqdb.selector.tags import parse_tag_expression

ALL = parse_tag_expression("*")
UA = parse_tag_expression("UA")

# -- the flights --------------------------------------------------------------------------------


def flight(**changes: str) -> dict[str, str]:
    text = files("mqdb.cli").joinpath("demo_data", "flights.csv").read_text(encoding="utf-8")
    return next(csv.DictReader(text.splitlines())) | changes


def test_the_sample_is_six_whole_days_of_real_flights() -> None:
    flights = load_flights()

    days = Counter(json.loads(each.message.body)["day"] for each in flights)
    assert days == {1: 842, 2: 943, 3: 914, 4: 915, 5: 720, 6: 832}
    assert Counter(each.message.tag for each in flights).most_common(2) == [("B6", 958), ("UA", 909)]


def test_every_flight_is_a_message_that_may_be_sent() -> None:
    for each in load_flights():
        check_message(each.message)


def test_the_origin_and_the_licence_of_the_sample_stand_beside_it() -> None:
    text = files("mqdb.cli").joinpath("demo_data", "README.md").read_text(encoding="utf-8")

    assert "nycflights13" in text
    assert "Bureau of Transportation Statistics" in text
    assert "CC0" in text


def test_a_flight_has_its_carrier_as_tag_and_two_keys_and_four_properties() -> None:
    made = to_flight(flight())

    assert made.message.tag == "UA"
    assert made.message.keys == ("UA1545", "N14228")
    assert made.message.properties == {"origin": "EWR", "dest": "IAH", "dep_delay": "2", "distance": "1400"}
    assert made.sharding_key == "N14228"
    body = json.loads(made.message.body)
    assert list(body) == list(flight())
    assert (body["tailnum"], body["dep_delay"], body["time_hour"]) == ("N14228", 2, "2013-01-01T10:00:00Z")


def test_a_missing_value_is_no_property_and_null_in_the_body() -> None:
    made = to_flight(flight(dep_delay="NA"))

    assert set(made.message.properties) == {"origin", "dest", "distance"}
    assert json.loads(made.message.body)["dep_delay"] is None


def test_without_a_tail_number_the_flight_is_the_key() -> None:
    made = to_flight(flight(tailnum="NA"))

    assert made.message.keys == ("UA1545",)
    assert made.sharding_key == "UA1545"


# -- the account --------------------------------------------------------------------------------


def sent(number: int, tag: str = "UA", key: str = "N1") -> Sent:
    return Sent(f"id-{number}", tag, f"body {number}".encode(), key, float(number))


def delivery(number: int, queue_id: int = 0, offset: int | None = None, body: str | None = None) -> Delivery:
    text = f"body {number}" if body is None else body
    return Delivery(f"id-{number}", queue_id, number if offset is None else offset, text.encode(), number + 0.5)


def test_an_account_is_exact_when_each_matching_message_came_once() -> None:
    account = settle([sent(1), sent(2, tag="AA"), sent(3)], [delivery(3), delivery(1)], UA)

    assert account == GroupTally(sent=3, matched=2, received=2, lost=0, duplicated=0, wrong=0)
    assert account.is_exact


@pytest.mark.parametrize(
    ("deliveries", "fault"),
    [
        ([delivery(1)], {"received": 1, "lost": 1}),
        ([delivery(1), delivery(3), delivery(3)], {"received": 3, "duplicated": 1}),
        ([delivery(1), delivery(3), delivery(2)], {"received": 3, "wrong": 1}),
        ([delivery(1), delivery(3, body="another")], {"wrong": 1}),
        ([delivery(1), delivery(1)], {"lost": 1, "duplicated": 1}),
    ],
)
def test_an_account_tells_what_is_lost_doubled_or_wrong(deliveries: list[Delivery], fault: dict[str, int]) -> None:
    account = settle([sent(1), sent(2, tag="AA"), sent(3)], deliveries, UA)

    expected = {"sent": 3, "matched": 2, "received": 2, "lost": 0, "duplicated": 0, "wrong": 0} | fault
    assert account._asdict() == expected
    assert not account.is_exact


def test_an_aircraft_is_in_order_in_one_queue() -> None:
    flights = [sent(1), sent(2, key="N2"), sent(3)]

    assert count_disorder(flights, [delivery(3), delivery(2, queue_id=1), delivery(1)]) == 0


def test_disorder_is_a_later_flight_before_an_earlier_one_or_in_another_queue() -> None:
    flights = [sent(1), sent(2), sent(3)]

    assert count_disorder(flights, [delivery(1, offset=5), delivery(2, offset=4), delivery(3, offset=6)]) == 1
    assert count_disorder(flights, [delivery(1), delivery(2), delivery(3, queue_id=1)]) == 1


def test_latency_is_from_the_send_to_the_listener() -> None:
    assert latencies([sent(1), sent(2)], [delivery(2), delivery(1), delivery(9)]) == [0.5, 0.5]


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [float(number) for number in range(1, 201)]

    assert percentile(values, 50) == 100.0
    assert percentile(values, 99) == 198.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) == 0.0
