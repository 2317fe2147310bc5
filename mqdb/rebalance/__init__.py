"""Rebalance: the assignment of a group's queues to its members.

Every member computes its own share from the same two lists, so members agree without exchanging messages. This works
because a strategy depends only on its arguments, and sorts both lists itself. The lists are those of one broker, whose
queues are divided among the members that it knows. RocketMQ: AllocateMessageQueueStrategy.

    allocate_averagely              runs of neighbouring queues, as even as can be
    allocate_averagely_by_circle    one queue to each member in turn
    allocate_by_consistent_hash     few queues move when a member comes or goes
    allocate_by_machine_room        only the queues of brokers in certain rooms
    allocate_machine_room_nearby    each room for itself, by another strategy
    allocate_by_config              the queues that this member was given by hand

`strategy` defines the type of a strategy. The strategies are in `averagely`, `consistent_hash`, `machine_room` and
`fixed` (by hand).
"""

from mqdb.rebalance.averagely import allocate_averagely, allocate_averagely_by_circle
from mqdb.rebalance.consistent_hash import allocate_by_consistent_hash
from mqdb.rebalance.fixed import allocate_by_config
from mqdb.rebalance.machine_room import allocate_by_machine_room, allocate_machine_room_nearby
from mqdb.rebalance.strategy import AllocationStrategy

__all__ = [
    "AllocationStrategy",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_machine_room_nearby",
    "allocate_by_config",
]
