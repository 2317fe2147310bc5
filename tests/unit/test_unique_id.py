"""Unique ids have RocketMQ's layout and never repeat."""

import os
import signal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.unique_id import UniqueIdGenerator, format_unique_id, local_address, parse_unique_id, unique_id_of
from mqdb.errors import ParameterInvalid
from tests.fixtures.clocks import ManualClock

MAY = datetime(2024, 5, 1, tzinfo=UTC)


def milliseconds(unique_id: uuid.UUID) -> int:
    return int.from_bytes(unique_id.bytes[10:14])


def counter(unique_id: uuid.UUID) -> int:
    return int.from_bytes(unique_id.bytes[14:])


# -- layout -------------------------------------------------------------------------------------


def test_an_id_holds_process_time_and_counter_where_rocketmq_has_them() -> None:
    clock = ManualClock(MAY + timedelta(days=2, milliseconds=7))
    generator = UniqueIdGenerator(clock)

    first, second = generator.next(), generator.next()

    assert int.from_bytes(first.bytes[4:6]) == os.getpid() % 65_536
    assert milliseconds(first) == milliseconds(second) == 2 * 86_400_000 + 7
    assert (counter(first), counter(second)) == (0, 1)
    assert first.bytes[:10] == second.bytes[:10]


@pytest.mark.parametrize("count", [1, 2, 100_000])
def test_ids_taken_together_are_those_that_would_have_come_one_by_one(count: int) -> None:
    clock = ManualClock(MAY)
    generator = UniqueIdGenerator(clock)
    before = generator.next()

    taken = generator.take(count)

    assert [unique_id.int for unique_id in taken] == list(range(before.int + 1, before.int + 1 + count))
    assert generator.next().int == taken[-1].int + 1


def test_an_id_begins_with_the_address_of_this_machine() -> None:
    address = local_address()
    if address is None:
        pytest.skip("this machine has no route to any other")

    assert UniqueIdGenerator().next().bytes[:4] == IPv4Address(address).packed


@given(st.timedeltas(timedelta(0), timedelta(days=36_525)))
def test_the_milliseconds_count_from_the_start_of_the_month(age: timedelta) -> None:
    now = datetime(2000, 1, 1, tzinfo=UTC) + age
    month = datetime(now.year, now.month, 1, tzinfo=UTC)

    made = UniqueIdGenerator(ManualClock(now)).next()

    assert milliseconds(made) == (now - month) // timedelta(milliseconds=1)


@given(st.uuids())
def test_an_id_reads_back_from_its_32_upper_case_digits(unique_id: uuid.UUID) -> None:
    text = format_unique_id(unique_id)

    assert len(text) == 32
    assert set(text) <= set("0123456789ABCDEF")
    assert parse_unique_id(text) == parse_unique_id(text.lower()) == unique_id
    assert parse_unique_id("01" + text) == unique_id_of("01" + text) == unique_id  # as RocketMQ 5's SDKs write it


@pytest.mark.parametrize(
    "text", ["", "0A", "G" * 32, "0" * 31, "0" * 33, "02" + "0" * 32, "0" * 32 + "\n", str(uuid.UUID(int=0)), "٣" * 32]
)
def test_text_that_is_no_id_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(ParameterInvalid, match=r"message id = .*: must be 32 hexadecimal digits") as caught:
        parse_unique_id(text)

    assert caught.value.value == text


# -- never twice --------------------------------------------------------------------------------


def test_many_threads_never_make_an_id_twice() -> None:
    generator = UniqueIdGenerator()
    start = threading.Barrier(8)

    def work(_: int) -> list[uuid.UUID]:
        start.wait(timeout=10)
        return [generator.next() for _ in range(5_000)]

    with ThreadPoolExecutor(8) as pool:
        made = [unique_id for part in pool.map(work, range(8)) for unique_id in part]

    assert len(set(made)) == 40_000


def test_two_generators_never_make_the_same_id() -> None:
    clock = ManualClock(MAY)

    made = [UniqueIdGenerator(clock).next() for _ in range(1_000)]

    assert len(set(made)) == 1_000


def test_more_ids_than_the_counter_holds_run_on_into_the_next_millisecond() -> None:
    generator = UniqueIdGenerator(ManualClock(MAY))

    made = [generator.next() for _ in range(65_537)]

    assert len(set(made)) == 65_537
    assert (milliseconds(made[-2]), counter(made[-2])) == (0, 65_535)
    assert (milliseconds(made[-1]), counter(made[-1])) == (1, 0)


@given(st.lists(st.integers(-3_000_000, 3_000_000).map(lambda seconds: timedelta(seconds=seconds)), max_size=60))
def test_no_jump_of_the_clock_makes_an_id_come_again(jumps: list[timedelta]) -> None:
    clock = ManualClock(MAY)
    generator = UniqueIdGenerator(clock)

    made = [generator.next()]
    for jump in jumps:
        clock.advance(jump)
        made += [generator.next(), generator.next()]

    assert len(set(made)) == len(made)


def test_the_same_moment_of_the_next_month_gives_another_id() -> None:
    clock = ManualClock(MAY)
    generator = UniqueIdGenerator(clock)

    in_may = generator.next()
    clock.advance(timedelta(days=31))
    in_june = generator.next()

    assert milliseconds(in_may) == milliseconds(in_june) == 0
    assert in_may != in_june


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    generator = UniqueIdGenerator(ManualClock(MAY))
    generator.next()

    of_child = in_child(lambda: b"".join(generator.next().bytes for _ in range(100)))
    made_by_child = [of_child[start : start + 16] for start in range(0, len(of_child), 16)]
    made_by_parent = [generator.next().bytes for _ in range(100)]

    assert len(made_by_child) == 100
    assert len({*made_by_child, *made_by_parent}) == 200
    # Process ids come again, so the salt has to differ too.
    assert made_by_child[0][6:10] != made_by_parent[0][6:10]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_midst_of_other_threads_leaves_the_child_able_to_make_ids() -> None:
    generator = UniqueIdGenerator()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            generator.next()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        made = {in_child(lambda: generator.next().bytes) for _ in range(8)}
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=10)

    assert len(made) == 8
    assert {len(unique_id) for unique_id in made} == {16}


def in_child(work: Callable[[], bytes]) -> bytes:
    """The result of `work` in a forked child; b"" if the child fails. An alarm ends a child that hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer_and_exit(work, writing)
    os.close(writing)
    with open(reading, "rb") as answer:
        result = answer.read()
    os.waitpid(child, 0)
    return result


def answer_and_exit(work: Callable[[], bytes], writing: int) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        os.write(writing, work())
        status = 0
    finally:
        os._exit(status)
