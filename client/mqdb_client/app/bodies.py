"""Bodies that an application sends: bytes and text as they are, anything else as JSON."""

from pydantic_core import PydanticSerializationError, to_json

from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BodyInvalid


def encode(body: object) -> bytes | str:
    """The body of a message: dataclasses, pydantic models, lists and dicts, and what they hold, as JSON.

    Raises BodyInvalid for what JSON cannot hold, and for a message.
    """
    if isinstance(body, Message | ReceivedMessage):
        raise BodyInvalid(f"is a {type(body).__name__}; give its body, or send the message by a Producer")
    if isinstance(body, bytes | str):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    try:
        return to_json(body)
    except PydanticSerializationError as error:
        raise BodyInvalid(f"is {type(body).__name__}, which cannot be written as JSON: {error}") from error
