"""A configuration: the member reads the queues that were assigned to it by hand."""

from collections.abc import Collection, Sequence

from mqdb.rebalance.strategy import AllocationStrategy, T


def allocate_by_config(given: Collection[T]) -> AllocationStrategy[T]:
    """A strategy that gives this member the existing queues among the `given` ones, whatever the other members have.

    Each member should be given different queues. This is not checked: a queue given to no member is not read, and a
    queue given to two members is read by its owner. Source: AllocateMessageQueueByConfig.
    """

    def allocate(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
        return sorted(queue for queue in queues if queue in given) if client_id in client_ids else []

    return allocate
