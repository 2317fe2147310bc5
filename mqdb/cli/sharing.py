"""Work shared out among threads so that what belongs together stays in order."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order_by_key(
    items: Sequence[T], key_of: Callable[[T], Hashable], work: Callable[[T], R], threads: int
) -> list[R]:
    """`work` on each item, by several threads; items of one key by one thread, in their order.

    Returns the results in the order of the items. When one raises, the others of its thread are left out.
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
