"""A configuration: the member reads the queues that it was given by hand."""

from collections.abc import Collection, Sequence

from mqdb.rebalance.strategy import AllocationStrategy, T


def allocate_by_config(given: Collection[T]) -> AllocationStrategy[T]:
    """A strategy that gives this member those of the `given` queues that exist, whatever the others have.

    Each member is given queues of its own. Nobody checks that: a queue that is given to none is not read, and one
    that is given to two is read by the one that owns it. Source: AllocateMessageQueueByConfig.
    """

    def allocate(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
        return sorted(queue for queue in queues if queue in given) if client_id in client_ids else []

    return allocate
