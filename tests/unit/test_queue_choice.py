"""The choice of the queue for the next message among several brokers, one of which may fail."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.message import MessageQueue
from mqdb_client.producer.queues.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.queues.queue_choice import QueueChooser
from tests.fixtures.clocks import ManualClock
from tests.fixtures.threads import at_once


def queues_of(*broker_names: str) -> list[MessageQueue]:
    """One queue for each name; a repeated name stands for the next queue of that broker."""
    counts: Counter[str] = Counter()
    queues = []
    for name in broker_names:
        queues.append(MessageQueue("orders", name, counts[name]))
        counts[name] += 1
    return queues


TWO_BROKERS = queues_of("a", "a", "a", "a", "b", "b", "b", "b")
layouts = st.lists(st.sampled_from("abcde"), min_size=1, max_size=24).map(lambda names: queues_of(*names))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2024, 5, 1, tzinfo=UTC))


@pytest.fixture
def faults(clock: ManualClock) -> LatencyFaultTolerance:
    return LatencyFaultTolerance(clock.monotonic)


def brokers_chosen(chooser: QueueChooser, queues: Sequence[MessageQueue], avoid: str | None = None) -> set[str]:
    return {chooser.choose(queues, avoid).broker_name for _ in range(3 * len(queues))}


# -- in turn ----------------------------------------------------------------------------------


def test_queues_come_in_turn_over_all_brokers() -> None:
    chooser = QueueChooser()

    chosen = [TWO_BROKERS.index(chooser.choose(TWO_BROKERS)) for _ in range(80)]

    assert all((b - a) % 8 == 1 for a, b in pairwise(chosen))


def test_choosers_begin_anywhere() -> None:
    assert len({QueueChooser().choose(TWO_BROKERS) for _ in range(60)}) > 1


def test_all_threads_share_one_turn() -> None:
    chooser = QueueChooser()

    chosen = at_once(*[lambda: Counter(chooser.choose(TWO_BROKERS) for _ in range(800))] * 4)

    total: Counter[MessageQueue] = Counter()
    for each in chosen:
        assert isinstance(each, Counter)
        total += each
    assert total == dict.fromkeys(TWO_BROKERS, 400)


def test_a_topic_may_gain_and_lose_queues_between_two_messages() -> None:
    chooser = QueueChooser()

    for queues in (TWO_BROKERS, TWO_BROKERS[:1], TWO_BROKERS[:5], TWO_BROKERS):
        assert chooser.choose(queues) in queues


# -- the broker that has just failed ----------------------------------------------------------


@given(layouts, st.sampled_from("abcde"))
def test_the_broker_that_failed_is_avoided_where_there_is_another(queues: list[MessageQueue], avoid: str) -> None:
    chosen = brokers_chosen(QueueChooser(), queues, avoid)

    assert avoid not in chosen or chosen == {avoid} == {queue.broker_name for queue in queues}


def test_with_one_broker_any_of_its_queues_is_chosen() -> None:
    queues = queues_of("a", "a", "a")
    chooser = QueueChooser()

    assert {chooser.choose(queues, "a") for _ in range(9)} == set(queues)


@given(layouts, st.integers(1, 60))
def test_what_a_failed_broker_does_not_get_is_spread_evenly_over_the_others(
    queues: list[MessageQueue], messages: int
) -> None:
    alive = [queue for queue in queues if queue.broker_name != "a"]
    chooser = QueueChooser()
    sent = Counter(dict.fromkeys(alive, 0))

    for _ in range(messages if alive else 0):
        queue = chooser.choose(queues)
        if queue.broker_name == "a":
            queue = chooser.choose(queues, avoid="a")
        sent[queue] += 1

    assert not alive or max(sent.values()) - min(sent.values()) <= 2


# -- with fault tolerance ---------------------------------------------------------------------


def test_while_all_brokers_are_available_queues_come_in_turn(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)

    chosen = [TWO_BROKERS.index(chooser.choose(TWO_BROKERS)) for _ in range(80)]

    assert all((b - a) % 8 == 1 for a, b in pairwise(chosen))


def test_an_unavailable_broker_is_left_alone_until_its_time_is_over(
    faults: LatencyFaultTolerance, clock: ManualClock
) -> None:
    chooser = QueueChooser(faults)
    faults.update("a", 0.0, is_isolated=True)

    assert brokers_chosen(chooser, TWO_BROKERS) == {"b"}
    clock.advance(timedelta(seconds=10))
    assert brokers_chosen(chooser, TWO_BROKERS) == {"a", "b"}


def test_queues_of_the_available_broker_get_as_many_each(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)
    faults.update("a", 0.0, is_isolated=True)

    assert Counter(chooser.choose(TWO_BROKERS) for _ in range(80)) == dict.fromkeys(TWO_BROKERS[4:], 20)


def test_of_the_available_the_one_that_failed_last_is_avoided(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)
    queues = queues_of("a", "b", "c")
    faults.update("c", 0.0, is_isolated=True)

    assert brokers_chosen(chooser, queues, avoid="a") == {"b"}


def test_an_available_broker_is_better_than_another_one(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)
    faults.update("b", 0.0, is_isolated=True)

    assert brokers_chosen(chooser, TWO_BROKERS, avoid="a") == {"a"}


def test_when_none_is_available_the_best_of_them_is_chosen(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)
    faults.update("a", 0.0, is_isolated=True)
    faults.update("b", 0.7, is_isolated=False)

    assert {chooser.choose(TWO_BROKERS) for _ in range(12)} == set(TWO_BROKERS[4:])


def test_when_none_is_available_the_one_that_failed_last_comes_last(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)
    faults.update("a", 0.0, is_isolated=True)
    faults.update("b", 0.7, is_isolated=False)

    assert brokers_chosen(chooser, TWO_BROKERS, avoid="b") == {"a"}
    assert brokers_chosen(chooser, TWO_BROKERS[:4], avoid="a") == {"a"}


def test_a_broker_without_queues_of_the_topic_is_not_chosen(faults: LatencyFaultTolerance) -> None:
    chooser = QueueChooser(faults)
    faults.update("a", 0.0, is_isolated=True)
    faults.update("b", 3.0, is_isolated=False)
    faults.update("of other topics", 0.6, is_isolated=False)

    assert brokers_chosen(chooser, TWO_BROKERS) == {"b"}


@given(
    layouts,
    st.none() | st.sampled_from("abcde"),
    st.dictionaries(st.sampled_from("abcde"), st.tuples(st.floats(0, 20), st.booleans())),
)
def test_an_unavailable_broker_is_chosen_only_when_no_other_is_available(
    queues: list[MessageQueue], avoid: str | None, sends: dict[str, tuple[float, bool]]
) -> None:
    clock = ManualClock(datetime(2024, 5, 1, tzinfo=UTC))
    faults = LatencyFaultTolerance(clock.monotonic)
    for name, (latency, is_isolated) in sends.items():
        faults.update(name, latency, is_isolated)
    available = {queue.broker_name for queue in queues if faults.is_available(queue.broker_name)}

    chosen = brokers_chosen(QueueChooser(faults), queues, avoid)

    assert chosen <= available or not available
    assert avoid not in chosen or available == {avoid} or {queue.broker_name for queue in queues} == {avoid}
