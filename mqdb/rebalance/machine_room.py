"""Machine rooms: messages are consumed in the room of their broker."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from mqdb.common.message import MessageQueue
from mqdb.rebalance.strategy import AllocationStrategy, T

#: Separates the room from the rest of a broker's name.
ROOM_SEPARATOR: Final = "@"


def allocate_by_machine_room(consumer_idcs: Collection[str]) -> AllocationStrategy[MessageQueue]:
    """A strategy that divides the queues of brokers in `consumer_idcs`; other queues are not read.

    The name of such a broker is `room@name`. Each member gets a run of queues of equal length, and each of the first
    members gets one of the remaining queues. Source: AllocateMessageQueueByMachineRoom.
    """

    def allocate(
        group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        members = sorted(client_ids)
        if client_id not in members:
            return []
        index = members.index(client_id)
        wanted = sorted(queue for queue in queues if _room(queue.broker_name) in consumer_idcs)
        size = len(wanted) // len(members)
        rest = wanted[size * len(members) :]
        return wanted[index * size : (index + 1) * size] + rest[index : index + 1]

    return allocate


def allocate_machine_room_nearby(
    inner: AllocationStrategy[T], room_of_queue: Callable[[T], str], room_of_client: Callable[[str], str]
) -> AllocationStrategy[T]:
    """A strategy that divides the queues of a room among the members in that room, with the strategy `inner`.

    The queues of rooms without a member are divided among all members, room by room, so that each queue has a reader.
    All members have to agree on the rooms of queues and clients.
    Source: AllocateMachineRoomNearby.
    """

    def allocate(group: str, client_id: str, queues: Sequence[T], client_ids: Sequence[str]) -> list[T]:
        if client_id not in client_ids:
            return []
        own_room = room_of_client(client_id)
        rooms_with_members = {room_of_client(member) for member in client_ids}
        neighbours = [member for member in client_ids if room_of_client(member) == own_room]
        share: list[T] = []
        for room in sorted({room_of_queue(queue) for queue in queues}):
            in_room = [queue for queue in queues if room_of_queue(queue) == room]
            if room == own_room:
                share += inner(group, client_id, in_room, neighbours)
            elif room not in rooms_with_members:
                share += inner(group, client_id, in_room, client_ids)
        return sorted(share)

    return allocate


def _room(broker_name: str) -> str | None:
    """The room in a broker's name; None for a name without a separator or with several separators, as in RocketMQ."""
    room, *rest = broker_name.split(ROOM_SEPARATOR)
    return room if len(rest) == 1 else None
