"""The number of messages that are consumed in a tenth of a second."""

from mqdb_client.consumer.queues.consume_pace import ConsumePace


def test_nothing_is_known_before_a_tenth_of_a_second() -> None:
    pace = ConsumePace(now=100.0)
    pace.count(50)
    assert pace.messages(now=100.09) == 0


def test_a_span_says_how_many_in_a_tenth() -> None:
    pace = ConsumePace(now=100.0)
    pace.count(50)
    pace.count(150)
    assert pace.messages(now=100.5) == 40


def test_it_holds_until_the_next_span_is_over() -> None:
    pace = ConsumePace(now=100.0)
    pace.count(100)
    assert pace.messages(now=100.25) == 40
    pace.count(10)
    assert pace.messages(now=100.3) == 40
    assert pace.messages(now=100.5) == 4


def test_listeners_that_have_nothing_to_do_count_as_slow() -> None:
    pace = ConsumePace(now=100.0)
    pace.count(1_000)
    assert pace.messages(now=100.5) == 200
    assert pace.messages(now=105.0) == 0
