"""Average strategies: the numbers of queues of two members differ by at most one."""

from collections.abc import Sequence

from mqdb.rebalance.strategy import T


def allocate_averagely(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
    """A run of neighbouring queues, whose lengths differ by at most one.

    The first members get the longer runs; if there are fewer queues than members, the last members get none.
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
    """Assign one queue to each member in turn, until no queues are left.

    Every member then gets both low and high queue ids of each topic, which `allocate_averagely` keeps together.
    Source: AllocateMessageQueueAveragelyByCircle.
    """
    members = sorted(client_ids)
    if client_id not in members:
        return []
    return sorted(queues)[members.index(client_id) :: len(members)]
