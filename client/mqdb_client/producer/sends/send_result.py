"""The result of sending a message that is stored. RocketMQ: SendResult."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from mqdb.common.message import MessageQueue, SendStatus
from mqdb.errors import IllegalState


def _cannot_ask() -> NoReturn:
    raise IllegalState("the queue offset", "not known in this process; read it before the result is pickled")


@dataclass(slots=True, eq=False)
class SendResult:
    """The queue and the position of a stored message. `log_pos` is its position in the broker's commit log.

    A message to be delivered later is not in `queue` yet, and its position there will be different. As in RocketMQ,
    `log_pos` and `queue_offset` are the positions of the waiting record in a system topic. A message with a time of
    delivery has a `recall_handle`, which `Producer.recall` takes.
    """

    status: SendStatus
    message_id: str
    queue: MessageQueue
    log_pos: int
    find_queue_offset: Callable[[], int] = field(repr=False)
    _queue_offset: int | None = field(default=None, repr=False)
    recall_handle: str | None = field(default=None, init=False, repr=False)

    @property
    def queue_offset(self) -> int:
        """The offset in the queue. If the send did not return it, dispatch assigns it, and the first access fetches it.

        This may wait for dispatch, and raises the errors of `find_queue_offset` if that takes too long; IllegalState if
        the transaction of the send is open or was rolled back, and in another process if the offset was not read
        before.
        """
        if self._queue_offset is None:
            self._queue_offset = self.find_queue_offset()
        return self._queue_offset

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """The state without the producer, which cannot be pickled."""
        kept = {each.name: getattr(self, each.name) for each in fields(self)}
        return None, kept | {"find_queue_offset": _cannot_ask}
