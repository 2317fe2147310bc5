"""The threads of `mqdb send`: all messages with the same key are sent by one thread, in order."""

import threading

import pytest

from mqdb.cli.sharing import in_order_by_key


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
