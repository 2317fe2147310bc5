"""The reason of a failure, as properties of the copy that is retried or goes to the dead letter queue.

RocketMQ does not keep the reason: there, readers of a dead letter queue have to search the logs of all consumers.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mqdb.common.property import FailureProperty, storable
from mqdb.common.user_error import describe
from mqdb.errors import shown

#: The limit for the message of an exception, and for every text except the traceback, in UTF-8. The beginning is kept.
MAX_TEXT_BYTES: Final = 1_024

#: The limit for a traceback, in UTF-8. The end is kept, which shows what was raised, and where.
MAX_TRACEBACK_BYTES: Final = 8_192


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed delivery. `time` is aware; `host` is the client id of the consumer."""

    #: The qualified name of a class, RECONSUME_LATER, TIMEOUT, or an invalid answer of the listener, such as None.
    exception: str
    message: str
    traceback: str
    host: str
    time: datetime

    @classmethod
    def of(cls, error: BaseException, host: str, time: datetime) -> "Failure":
        """The failure of a listener that raised an error."""
        text = describe(error)
        return cls(text.exception, text.message, text.traceback, host, time)

    @classmethod
    def later(cls, host: str, time: datetime) -> "Failure":
        """The failure of a listener that requested redelivery without a reason."""
        return cls("RECONSUME_LATER", "", "", host, time)

    @classmethod
    def timeout(cls, host: str, time: datetime, after: timedelta) -> "Failure":
        """The failure of a listener that has had the message for longer than the limit, `after`."""
        return cls("TIMEOUT", f"the listener has not returned after {after}", "", host, time)

    @classmethod
    def unacknowledged(cls, host: str, time: datetime, deliveries: int) -> "Failure":
        """The failure of a message that was popped this often and never acknowledged in time."""
        return cls("TIMEOUT", f"not acknowledged after {deliveries} deliveries", "", host, time)

    @classmethod
    def no_answer(cls, answer: object, host: str, time: datetime) -> "Failure":
        """The failure of a listener that did not return a status, most often None."""
        return cls(shown(answer), f"the listener returned {shown(answer)}, which is not a status", "", host, time)

    def properties(self, attempt: int) -> dict[str, str]:
        """The properties of the failure for a copy of the message. `attempt` counts deliveries from 1.

        The properties always have the same six names, so that they replace an earlier failure completely; a missing
        value is "".
        """
        return {
            FailureProperty.EXCEPTION.value: _beginning(self.exception),
            FailureProperty.MESSAGE.value: _beginning(self.message),
            FailureProperty.TRACEBACK.value: _end(self.traceback),
            FailureProperty.HOST.value: _beginning(self.host),
            FailureProperty.ATTEMPT.value: str(attempt),
            FailureProperty.TIME.value: self.time.astimezone(UTC).isoformat(timespec="milliseconds"),
        }


# A character that would be split by the cut is left out.
def _beginning(text: str) -> str:
    return storable(text).encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def _end(text: str) -> str:
    return storable(text).encode()[-MAX_TRACEBACK_BYTES:].decode(errors="ignore")
