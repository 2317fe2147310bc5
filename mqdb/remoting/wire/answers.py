"""Answers, and errors as clients read them."""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from mqdb.errors import BrokerUnavailable, MqdbError, ResponseCode
from mqdb.remoting.wire.frame import FrameInvalid

logger = logging.getLogger(__name__)

#: Codes above belong to clients, which make them themselves.
_HIGHEST_OF_BROKERS: Final = 1_000


class Answer(NamedTuple):
    """An answer; without a remark where it says all by its code."""

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] = {}
    body: bytes = b""
    remark: str | None = None


#: To a client that would not wait longer for the database.
NO_ANSWER: Final = Answer(ResponseCode.SYSTEM_ERROR, remark="the database has not answered in time")


def refusal(error: Exception) -> Answer:
    """The code of an error, and its sentence, which people see. Unforeseen errors are logged, too."""
    if isinstance(error, FrameInvalid):
        return Answer(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
    if not isinstance(error, MqdbError):
        logger.error("a request failed in an unforeseen way", exc_info=error)
        return Answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
    if isinstance(error, BrokerUnavailable):
        # Its sentence names the database, which clients should not see.
        logger.debug("a request failed: the database is unavailable", extra={"reason": str(error)})
        return Answer(ResponseCode.SYSTEM_ERROR, remark="the broker has no connection to its database at present")
    code = error.code if error.code < _HIGHEST_OF_BROKERS else ResponseCode.SYSTEM_ERROR
    return Answer(code, remark=str(error))
