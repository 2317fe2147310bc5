"""The type of an allocation strategy."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar


class Sortable(Protocol):
    """A queue, as far as strategies are concerned."""

    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Sortable)

#: (group, client_id, queues, client_ids) -> the queues of `client_id`, in order. `group` is for strategies that treat
#: groups differently; none of RocketMQ's strategies does. A client that is not among the members gets no queues.
AllocationStrategy: TypeAlias = Callable[[str, str, Sequence[T], Sequence[str]], list[T]]
