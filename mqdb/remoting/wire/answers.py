"""Answers to requests, and errors in the form that clients read."""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from mqdb.errors import BrokerUnavailable, MqdbError, ResponseCode
from mqdb.remoting.wire.frame import FrameInvalid

logger = logging.getLogger(__name__)

#: Higher codes belong to clients, which create them themselves.
_HIGHEST_OF_BROKERS: Final = 1_000


class Answer(NamedTuple):
    """An answer; the remark is None if the code says everything."""

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] = {}
    body: bytes = b""
    remark: str | None = None


#: The answer to a client that would not wait longer for the database.
NO_ANSWER: Final = Answer(ResponseCode.SYSTEM_ERROR, remark="the database did not answer in time")


def refusal(error: Exception) -> Answer:
    """The answer for an error: its code, and its sentence, which people see. Unexpected errors are also logged."""
    if isinstance(error, FrameInvalid):
        return Answer(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
    if not isinstance(error, MqdbError):
        logger.error("a request failed unexpectedly", exc_info=error)
        return Answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
    if isinstance(error, BrokerUnavailable):
        # The sentence of this error names the database, which clients should not see.
        logger.debug("a request failed: the database is unavailable", extra={"reason": str(error)})
        return Answer(ResponseCode.SYSTEM_ERROR, remark="the broker currently has no connection to its database")
    code = error.code if error.code < _HIGHEST_OF_BROKERS else ResponseCode.SYSTEM_ERROR
    return Answer(code, remark=str(error))
