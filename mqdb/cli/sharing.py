"""Divides work among threads so that items with the same key stay in order."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order_by_key(
    items: Sequence[T], key_of: Callable[[T], Hashable], work: Callable[[T], R], threads: int
) -> list[R]:
    """Call `work` on each item from several threads; items with the same key are handled by one thread, in order.

    Returns the results in the order of the items. If a call raises an error, the remaining items of its thread are
    skipped.
    """
    shares: list[list[int]] = [[] for _ in range(threads)]
    share_of: dict[Hashable, int] = {}
    for number, item in enumerate(items):
        shares[share_of.setdefault(key_of(item), len(share_of) % threads)].append(number)

    def work_on(share: list[int]) -> list[tuple[int, R]]:
        return [(number, work(items[number])) for number in share]

    with ThreadPoolExecutor(threads) as pool:
        parts = [pool.submit(work_on, share) for share in shares if share]
        results = dict(result for part in parts for result in part.result())
    return [results[number] for number in range(len(items))]
