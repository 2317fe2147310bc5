"""Message ids as arguments of commands."""

from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import MqdbError, ParameterInvalid, ResponseCode


class MessageNotFound(MqdbError, code=ResponseCode.QUERY_NOT_FOUND):
    """No broker has a consumable message with this id."""

    message_id: str
    sentence = "there is no message {message_id!r}; it may still be scheduled: mqdb timer list"


def check_id(text: str, listed_by: str) -> None:
    """Raise ParameterInvalid if a text is not a message id; the error names the command that lists ids."""
    try:
        parse_unique_id(text)
    except ParameterInvalid:
        reason = f"must be the id of a message, 32 hexadecimal digits; this command lists ids: {listed_by}"
        raise ParameterInvalid("message id", text, reason) from None
