"""The outcome of a call: RocketMQ 5's codes for errors of mqdb. RocketMQ: GrpcProxyException, ResponseBuilder."""

import logging
from typing import Final

from mqdb.errors import (
    AccessDenied,
    BodyEmpty,
    BodyTooLarge,
    BrokerUnavailable,
    CompressedBodyBroken,
    DelayTooLong,
    Denied,
    FilterDisabled,
    GroupNotFound,
    HalfMessageMismatch,
    HalfMessageNotFound,
    InvalidInput,
    MqdbError,
    NotFound,
    PropertiesTooLarge,
    PropertyInvalid,
    PropertyReserved,
    RecallHandleInvalid,
    ReceiptHandleInvalid,
    ScheduleInvalid,
    SelectorSyntaxError,
    SendGivenUp,
    SendOutcomeUnknown,
    SignatureInvalid,
    StorageRefused,
    TagExpressionInvalid,
    TooManyWaiting,
    TopicNotFound,
)
from mqdb.grpc.wire.rocketmq_pb2 import Code, Status

logger = logging.getLogger(__name__)

OK: Final = Status(code=Code.OK, message="OK")


class CallRefused(Exception):
    """A call breaks a rule of the protocol that mqdb itself does not have."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


#: The first entry that matches an error counts.
_CODES: Final[tuple[tuple[type[MqdbError], Code], ...]] = (
    (SignatureInvalid, Code.UNAUTHORIZED),
    (AccessDenied, Code.FORBIDDEN),
    (TopicNotFound, Code.TOPIC_NOT_FOUND),
    (GroupNotFound, Code.CONSUMER_GROUP_NOT_FOUND),
    (ReceiptHandleInvalid, Code.INVALID_RECEIPT_HANDLE),
    (BodyEmpty, Code.MESSAGE_BODY_EMPTY),
    (BodyTooLarge, Code.MESSAGE_BODY_TOO_LARGE),
    (CompressedBodyBroken, Code.MESSAGE_CORRUPTED),
    (PropertiesTooLarge, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (PropertyReserved, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (PropertyInvalid, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (ScheduleInvalid, Code.ILLEGAL_DELIVERY_TIME),
    (DelayTooLong, Code.ILLEGAL_DELIVERY_TIME),
    (TagExpressionInvalid, Code.ILLEGAL_FILTER_EXPRESSION),
    (SelectorSyntaxError, Code.ILLEGAL_FILTER_EXPRESSION),
    (FilterDisabled, Code.ILLEGAL_FILTER_EXPRESSION),
    # Like the original, which has no separate code for these errors.
    (HalfMessageNotFound, Code.INTERNAL_SERVER_ERROR),
    (HalfMessageMismatch, Code.INTERNAL_SERVER_ERROR),
    (RecallHandleInvalid, Code.INTERNAL_SERVER_ERROR),
    (SendGivenUp, Code.PROXY_TIMEOUT),
    (SendOutcomeUnknown, Code.PROXY_TIMEOUT),
    (StorageRefused, Code.INTERNAL_ERROR),
    (TooManyWaiting, Code.TOO_MANY_REQUESTS),
    (NotFound, Code.NOT_FOUND),
    (Denied, Code.FORBIDDEN),
    (InvalidInput, Code.BAD_REQUEST),
)


def status_of(error: Exception) -> Status:
    """The status for an error: its code, and its sentence, which people see. Unexpected errors are also logged."""
    if isinstance(error, CallRefused):
        return Status(code=error.code, message=str(error))
    if isinstance(error, BrokerUnavailable):
        # The sentence of this error names the database, which clients should not see.
        logger.debug("a call failed: the database is unavailable", extra={"reason": str(error)})
        return Status(code=Code.INTERNAL_ERROR, message="the broker currently has no connection to its database")
    if not isinstance(error, MqdbError):
        logger.error("a call failed unexpectedly", exc_info=error)
        return Status(code=Code.INTERNAL_SERVER_ERROR, message=f"{type(error).__name__}: {error}")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL_SERVER_ERROR)
    return Status(code=code, message=str(error))
