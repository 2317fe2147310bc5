"""The search for the first place that is late enough, on lists."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mqdb.store.log.time_search import search


def found(numbers: Sequence[int], wanted: int, low: int = 0) -> tuple[int, int]:
    """The place found in these numbers, starting at `low`, and the number of rounds."""
    running = search(low, low + len(numbers))
    answers: list[bool] | None = None
    rounds = 0
    while True:
        try:
            places = next(running) if answers is None else running.send(answers)
        except StopIteration as stop:
            return stop.value, rounds
        assert places == sorted(set(places))
        rounds += 1
        answers = [numbers[place - low] >= wanted for place in places]


@given(numbers=st.lists(st.integers(0, 50), max_size=300).map(sorted), wanted=st.integers(-1, 51))
def test_the_first_that_is_late_enough_is_found(numbers: list[int], wanted: int) -> None:
    expected = sum(number < wanted for number in numbers)

    assert found(numbers, wanted)[0] == expected


@given(numbers=st.lists(st.integers(0, 50), max_size=300), wanted=st.integers(-1, 51))
def test_what_is_found_is_late_enough_in_any_order(numbers: list[int], wanted: int) -> None:
    place, _ = found(numbers, wanted)

    assert place == len(numbers) or numbers[place] >= wanted


def test_ten_million_places_take_a_few_rounds() -> None:
    place, rounds = found(range(10_000_000), 1_234_567)

    assert place == 1_234_567
    assert rounds <= 6


def test_places_need_not_begin_at_0() -> None:
    assert found([1, 2, 3], 2, low=1_000)[0] == 1_001


def test_where_there_is_no_place_nothing_is_looked_at() -> None:
    assert found([], 3, low=17) == (17, 0)
