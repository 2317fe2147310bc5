"""Ids of messages as arguments of commands."""

from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import ParameterInvalid


def check_id(text: str, listed_by: str) -> None:
    """Raises ParameterInvalid for a text that is no id of a message; the error names the command that lists them."""
    try:
        parse_unique_id(text)
    except ParameterInvalid:
        reason = f"give the id of a message, 32 hexadecimal digits; this lists them: {listed_by}"
        raise ParameterInvalid("message id", text, reason) from None
