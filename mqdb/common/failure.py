"""The reason of a failure, as properties of the copy that is retried or goes to the dead letter queue.

RocketMQ does not keep it: there, readers of a dead letter queue have to search the logs of all consumers.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mqdb.common.property import FailureProperty, storable
from mqdb.common.user_error import describe
from mqdb.errors import shown

#: Of the message of an exception, and of each other text but the traceback, in UTF-8. The beginning is kept.
MAX_TEXT_BYTES: Final = 1_024

#: Of a traceback, in UTF-8. The end is kept: there it says what was raised, and where.
MAX_TRACEBACK_BYTES: Final = 8_192


@dataclass(frozen=True, slots=True)
class Failure:
    """One delivery that was not consumed. `time` is aware; `host` is the client id of the consumer."""

    #: The qualified name of a class, RECONSUME_LATER, TIMEOUT, or the listener's answer that is none, such as None.
    exception: str
    message: str
    traceback: str
    host: str
    time: datetime

    @classmethod
    def of(cls, error: BaseException, host: str, time: datetime) -> "Failure":
        """The listener raised an error."""
        text = describe(error)
        return cls(text.exception, text.message, text.traceback, host, time)

    @classmethod
    def later(cls, host: str, time: datetime) -> "Failure":
        """The listener asked for the message to come again, and did not say why."""
        return cls("RECONSUME_LATER", "", "", host, time)

    @classmethod
    def timeout(cls, host: str, time: datetime, after: timedelta) -> "Failure":
        """The listener has had the message for longer than a listener may: `after`."""
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
        """The properties of the failure for a copy of the message. `attempt` counts deliveries, the first is 1.

        They always have the same six names, so that nothing of an earlier failure stays; a missing value is "".
        """
        return {
            FailureProperty.EXCEPTION.value: _beginning(self.exception),
            FailureProperty.MESSAGE.value: _beginning(self.message),
            FailureProperty.TRACEBACK.value: _end(self.traceback),
            FailureProperty.HOST.value: _beginning(self.host),
            FailureProperty.ATTEMPT.value: str(attempt),
            FailureProperty.TIME.value: self.time.astimezone(UTC).isoformat(timespec="milliseconds"),
        }


# A character that the cut would split is left out.
def _beginning(text: str) -> str:
    return storable(text).encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def _end(text: str) -> str:
    return storable(text).encode()[-MAX_TRACEBACK_BYTES:].decode(errors="ignore")
