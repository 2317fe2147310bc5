"""Averages: each member gets as many queues as any other, give or take one."""

from collections.abc import Sequence

from mqdb.rebalance.strategy import T


def allocate_averagely(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
    """A run of neighbouring queues, sizes differing by one at most.

    The first members get the larger runs; with fewer queues than members the last get nothing.
    Source: AllocateMessageQueueAveragely.
    """
    members = sorted(client_ids)
    if client_id not in members:
        return []
    index = members.index(client_id)
    size, remainder = divmod(len(queues), len(members))
    start = index * size + min(index, remainder)
    return sorted(queues)[start : start + size + (index < remainder)]


def allocate_averagely_by_circle(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
    """One queue for each member in turn, until there are no more.

    So every member gets some of each topic's low and high queue ids, which `allocate_averagely` keeps together.
    Source: AllocateMessageQueueAveragelyByCircle.
    """
    members = sorted(client_ids)
    if client_id not in members:
        return []
    return sorted(queues)[members.index(client_id) :: len(members)]
