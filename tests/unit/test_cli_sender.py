"""How `mqdb send` cuts and shares out its messages."""

import threading

import pytest

from mqdb.cli.records import Outgoing
from mqdb.cli.sender import BATCH_BYTES, parts
from mqdb.cli.sharing import in_order_by_key
from mqdb.message import Message


def outgoing(body_bytes: int, **properties: str) -> Outgoing:
    return Outgoing(Message("orders", b"x" * body_bytes, properties=properties), None, 1)


def test_a_batch_has_no_more_bytes_than_the_broker_takes() -> None:
    half = outgoing(BATCH_BYTES // 2 - 1_000)

    assert [len(part) for part in parts([half] * 5)] == [2, 2, 1]
    assert [len(part) for part in parts([outgoing(100)] * 1_000)] == [1_000]
    assert list(parts([])) == []


def test_a_message_as_large_as_a_batch_goes_alone() -> None:
    assert [len(part) for part in parts([outgoing(10), outgoing(BATCH_BYTES), outgoing(10)])] == [1, 1, 1]


def test_properties_count_with_the_most_bytes_that_they_can_have() -> None:
    wide = outgoing(BATCH_BYTES // 2 - 1_000, city="ü" * 1_000)

    assert [len(part) for part in parts([wide, wide])] == [1, 1]


def test_work_of_one_key_is_done_in_order_by_one_thread() -> None:
    done: dict[int, list[tuple[int, int]]] = {}
    all_at_work = threading.Barrier(3, timeout=10)

    def work(item: int) -> int:
        if item < 3:
            all_at_work.wait()
        done.setdefault(item % 3, []).append((item, threading.get_ident()))
        return -item

    results = in_order_by_key(range(60), lambda item: item % 3, work, threads=3)

    assert results == [-item for item in range(60)]
    for of_key in done.values():
        assert [item for item, _ in of_key] == sorted(item for item, _ in of_key)
        assert len({thread for _, thread in of_key}) == 1
    assert len({of_key[0][1] for of_key in done.values()}) == 3


def test_what_fails_is_raised_and_no_later_item_of_its_key_is_done() -> None:
    done: list[str] = []

    def work(item: str) -> None:
        if item == "b2":
            raise ValueError(item)
        done.append(item)

    with pytest.raises(ValueError, match="b2"):
        in_order_by_key(["a1", "b1", "b2", "b3", "a2"], lambda item: item[0], work, threads=2)

    assert sorted(done) == ["a1", "a2", "b1"]
