"""The fields of a query or a form, as text that a browser has sent. An empty field counts as missing."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from mqdb.common.duration import parse_duration
from mqdb.common.property import storable
from mqdb.errors import ParameterInvalid, shown

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)

#: The limit of a form: a body of 4 MiB, each byte of which may be sent as three bytes.
MOST_FORM_BYTES: Final = 16 * 1024 * 1024
_MOST_FIELDS: Final = 2_000

_FORM: Final = "application/x-www-form-urlencoded"
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)


def checked(name: str, value: str) -> str:
    """Return the value. Raises ParameterInvalid if PostgreSQL cannot store the value."""
    if storable(value) != value:
        raise ParameterInvalid(name, value, "has a character that PostgreSQL cannot store")
    return value


class Fields:
    """The names and values of fields, in the order in which they were sent."""

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self._pairs = pairs

    def raw(self, name: str) -> str | None:
        """The value of a field as it was sent; None if the field is missing."""
        return next((value for key, value in self._pairs if key == name), None)

    def text(self, name: str) -> str | None:
        """The value of a field without surrounding blanks; None if the value is empty. Raises ParameterInvalid."""
        return checked(name, (self.raw(name) or "").strip()) or None

    def all(self, name: str) -> list[str]:
        """The values of all fields with this name. Raises ParameterInvalid."""
        return [checked(name, value) for key, value in self._pairs if key == name]

    def has(self, name: str) -> bool:
        """Whether the field has a value; for a switch, whether the switch is on."""
        return self.text(name) is not None

    def number(self, name: str) -> int | None:
        """The value as a whole number, 0 or greater; None if the value is empty. Raises ParameterInvalid."""
        text = self.text(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or int(text) >= 2**63:
            raise ParameterInvalid(name, text, "write a whole number, 0 or greater")
        return int(text)

    def choice(self, name: str, among: type[ChoiceT]) -> ChoiceT:
        """The value as a member of an enumeration. Raises ParameterInvalid."""
        text = self.text(name)
        if text not in list(among):
            raise ParameterInvalid(name, text, f"choose one of {', '.join(among)}")
        return among(text)

    def time(self, name: str) -> datetime | timedelta | None:
        """The value as a time, in UTC if it has no UTC offset, or as a duration before now. Raises ParameterInvalid."""
        text = self.text(name)
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            ago = parse_duration(text)
            if ago is None:
                reason = "write a time in UTC such as 2026-07-14 09:30, or how long ago, such as 90m"
                raise ParameterInvalid(name, shown(text), reason) from None
            return ago
        return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)


def query_of(request: Request) -> Fields:
    """The fields of the query string."""
    return Fields(request.query_params.multi_items())


class FormRefused(Exception):
    """A posted body is not a form or is too large."""

    def __init__(self, response: PlainTextResponse) -> None:
        super().__init__()
        self.response = response


async def form_of(request: Request, most_bytes: int = MOST_FORM_BYTES) -> Fields:
    """The fields of a posted form. Raises FormRefused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise FormRefused(PlainTextResponse(f"Send a form with the content type {_FORM}.\n", 415))
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most_bytes:
            raise FormRefused(PlainTextResponse(f"A form may have at most {most_bytes:,} bytes.\n", 413))
    try:
        pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise FormRefused(PlainTextResponse(f"The form cannot be read: {error}\n", 400)) from None
    return Fields(pairs)
