"""Bodies of an application: encoding for sends, and decoding by the annotation of a listener's parameter.

A body has one of three forms. The property MQDB_BODY gives the form, because the bytes alone do not show it:

bytes                       as they are
text                        as UTF-8
json                        other values, made of JSON's own types
json;shop.Order/shop.Base   made of other types: the type of the value, and those in its containers (`body_types.py`)

A send reads back what it writes (`reading_back.py`). So if a listener would read a different value, the cause is the
listener's annotation: it accepts any value, or several types that JSON does not distinguish. Such a message is refused.
"""

from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.user_error import class_name, reason_of
from mqdb.errors import BodyInvalid, BodyUnreadable
from mqdb_client.app.body_types import (
    JSON_TYPES,
    UNIONS,
    TakenTypes,
    classes_of,
    has_validators,
    taken_types,
    types_of,
)
from mqdb_client.app.reading_back import faults, json_of, loss_in

#: The property that names the form of a message's body.
BODY_PROPERTY: Final = "MQDB_BODY"


class Form(StrEnum):
    """The forms of a body."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"


_FORMS: Final = frozenset(form.value for form in Form)


class Body(NamedTuple):
    """An encoded body, ready to be sent."""

    content: bytes | str
    mark: str
    """The property MQDB_BODY of the message."""


def encode(body: object) -> Body:
    """Encode a body: bytes and text unchanged, anything else as JSON (dataclasses, pydantic models, lists, dicts).

    Raises BodyInvalid for a value that cannot be read back from its JSON, and for a value that is a message.
    """
    if isinstance(body, Message | ReceivedMessage):
        raise BodyInvalid(f"is a {type(body).__name__}; give its body, or send the message by a Producer")
    if type(body) is bytes:
        return Body(body, Form.BYTES.value)
    if type(body) is str:
        return Body(body, Form.TEXT.value)
    if isinstance(body, bytearray | memoryview):
        raise BodyInvalid(f"is a {type(body).__name__}, which would come back as bytes; give bytes(...)")
    name = class_name(type(body))
    try:
        content = json_of(body)
        loss = loss_in(body, content)
    except Exception as error:  # serializers and validators are user code, and may raise anything
        raise BodyInvalid(f"is {name}, which JSON cannot hold: {reason_of(error)}") from error
    if loss is not None:
        raise BodyInvalid(f"is {name}, which does not come back from its JSON: {loss}")
    types = types_of(body)
    return Body(content, ";".join([Form.JSON, *([] if JSON_TYPES.issuperset(types) else types)]))


class BodyReader:
    """Reads bodies as values of an annotated type."""

    def __init__(self, annotation: Any, shown: str) -> None:
        """`shown` is the annotation as errors show it.

        Raises pydantic's errors for a type that pydantic cannot read.
        """
        self._annotation = annotation
        self._shown = shown
        members = get_args(annotation) if get_origin(annotation) in UNIONS else ()
        #: The types of the annotation, and of each member of a union.
        self._adapters: list[TypeAdapter[Any]] = [TypeAdapter(each) for each in (annotation, *members)]

    def complete(self) -> None:
        """Resolve all types in the annotation, after the modules are loaded. Raises pydantic's errors."""
        for adapter in self._adapters:
            adapter.rebuild()
        _ = self._types

    @cached_property
    def _types(self) -> TakenTypes:
        return taken_types(self._annotation)

    @cached_property
    def _forms(self) -> frozenset[Form]:
        """The forms in which `encode` writes values of the annotation."""
        whole = self._types.whole
        if object in whole:
            return frozenset(Form)
        return frozenset(Form.BYTES if each is bytes else Form.TEXT if each is str else Form.JSON for each in whole)

    @cached_property
    def _unsaid(self) -> Form:
        """The form assumed for a message without the property MQDB_BODY."""
        named = self._forms if object not in self._types.whole else {Form.JSON}
        return next(form for form in Form if form in named)

    def read(self, message: ReceivedMessage) -> Any:
        """The body of a message. Raises BodyUnreadable, and the errors of the user's code."""
        mark = message.properties.get(BODY_PROPERTY)
        said, *sent = (self._unsaid if mark is None else mark).split(";")
        if said not in _FORMS:
            reason = f"its property {BODY_PROPERTY} is {mark!r}; it has to begin with {', '.join(Form)}"
            raise BodyUnreadable(self._shown, reason)
        form = Form(said) if said in self._forms else self._unsaid
        try:
            if form is Form.JSON:
                if mark is None or said != Form.JSON:
                    return self._adapters[0].validate_json(message.body)
                return self._of_typed(message.body, sent) if sent else self._of_plain(message.body)
            value = message.body if form is Form.BYTES else message.body.decode()
            if sent:
                self._check(sent, types_of(value))
            return self._adapters[0].validate_python(value, strict=True)
        except UnicodeDecodeError as error:
            raise BodyUnreadable("text", str(error)) from error
        except ValidationError as error:
            # Without its cause, which shows the body in a traceback.
            raise BodyUnreadable(self._shown, faults(error)) from None

    def _of_plain(self, body: bytes) -> Any:
        """Read a body made of JSON's own types. These types are known, so a string is never converted to a number."""
        try:
            plain = from_json(body)
        except ValueError as error:
            raise BodyUnreadable(self._shown, f"body: Invalid JSON: {error}") from None
        adapter = self._adapters[0]
        try:
            value = adapter.validate_python(plain, strict=True)
        except ValidationError:
            value = adapter.validate_json(body, strict=True)
        self._check(types_of(plain), types_of(value))
        return value

    def _of_typed(self, body: bytes, sent: list[str]) -> Any:
        """Read JSON with user-defined types. A value of a union is read as the member type that was sent."""
        first, *others = self._adapters
        for adapter in others:
            try:
                value = adapter.validate_json(body)
            except ValidationError:
                continue
            if types_of(value) == sent:
                return value
        value = first.validate_json(body)
        self._check(sent, types_of(value))
        return value

    def _check(self, sent: list[str], got: list[str]) -> None:
        lost = self._types.lack(sent, got)
        if lost is not None and not has_validators(self._annotation):
            come = ", ".join(classes_of(got))
            reason = f"{lost} was sent, and {come} would come; annotate the parameter with the type that was sent"
            raise BodyUnreadable(self._shown, reason)
