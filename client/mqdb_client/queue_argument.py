"""A queue as an argument: an invalid queue is refused at the call, before any lookup."""

from collections.abc import Iterable

from mqdb.common.message import MessageQueue
from mqdb.errors import ParameterInvalid


def check_queue(queue: object) -> None:
    """Raise ParameterInvalid unless a value is a MessageQueue with names and a number; the queue need not exist."""
    if not isinstance(queue, MessageQueue):
        raise ParameterInvalid("queue", queue, f"is {type(queue).__name__}; give a MessageQueue")
    parts: tuple[tuple[str, object, type], ...] = (
        ("topic", queue.topic, str),
        ("broker", queue.broker_name, str),
        ("number", queue.queue_id, int),
    )
    for part, value, kind in parts:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ParameterInvalid("queue", str(queue), f"its {part} is {type(value).__name__}, not {kind.__name__}")


def queues_of(queues: object) -> list[MessageQueue]:
    """The queues that a caller passes in any iterable. Raises ParameterInvalid unless all items are MessageQueues."""
    if isinstance(queues, MessageQueue):
        raise ParameterInvalid("queues", str(queues), "is one queue; give a list")
    if isinstance(queues, str) or not isinstance(queues, Iterable):
        raise ParameterInvalid("queues", queues, f"is {type(queues).__name__}; give a list of MessageQueues")
    given = list(queues)
    for queue in given:
        check_queue(queue)
    return given
