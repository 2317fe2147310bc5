"""Rebalance: which member of a group reads which queues.

Every member computes its own share from the same two lists, and nobody tells anybody. That works
because a strategy looks at nothing but its arguments, and puts both lists in order itself.
RocketMQ: AllocateMessageQueueStrategy.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar


class Sortable(Protocol):
    """A queue, as far as a strategy is concerned."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Sortable)

#: (group, client_id, queues, client_ids) -> the queues of `client_id`, in order.
AllocationStrategy: TypeAlias = Callable[[str, str, Sequence[T], Sequence[str]], list[T]]


def allocate_averagely(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
    """The share of `client_id`: a run of neighbouring queues, sizes differing by one at most.

    The first members get the larger runs; with fewer queues than members the last get nothing.
    A client that is not (or no longer) among the members gets nothing either. `group` is part of
    the strategies' common signature and plays no role in this one.
    Source: AllocateMessageQueueAveragely.
    """
    members = sorted(client_ids)
    if client_id not in members:
        return []
    index = members.index(client_id)
    size, remainder = divmod(len(queues), len(members))
    start = index * size + min(index, remainder)
    return sorted(queues)[start : start + size + (index < remainder)]
