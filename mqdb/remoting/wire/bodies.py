"""JSON bodies of requests and answers."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mqdb.errors import ParameterInvalid

#: JSON bodies are parsed in the event loop, which blocks all clients, so their size is limited.
_MOST_BODY_BYTES: Final = 2**20


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds_of(time: datetime | None) -> int:
    """A time as milliseconds since 1970, as in bodies; 0 for None."""
    return 0 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def as_json(said: object) -> bytes:
    """The body of an answer, without blanks.

    The client in Go would read blanks as part of a route's addresses.
    """
    return json.dumps(said, separators=(",", ":")).encode()


def parsed_object(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object whose texts PostgreSQL can store. Raises ParameterInvalid for any other body."""
    if len(body) > _MOST_BODY_BYTES:
        raise ParameterInvalid("body", len(body), f"has more than {_MOST_BODY_BYTES:,} bytes")
    try:
        found = json.loads(body)
        texts = "".join(_texts(found))
        texts.encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise ParameterInvalid("body", len(body), f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ParameterInvalid("body", type(found).__name__, "must be an object")
    if "\0" in texts:
        raise ParameterInvalid("body", len(body), "contains U+0000, which PostgreSQL cannot store")
    return found


def _texts(said: object) -> Iterator[str]:
    """Yield all texts in a JSON value, including names."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, list):
        for each in said:
            yield from _texts(each)
    elif isinstance(said, dict):
        for name, each in said.items():
            yield name
            yield from _texts(each)


def text_in(said: Mapping[str, Any], name: str) -> str:
    """A required text in a body. Raises ParameterInvalid if it is missing."""
    found = said.get(name)
    if not isinstance(found, str) or not found:
        raise ParameterInvalid(name, found, "is missing")
    return found


def dicts(said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list in a body; empty if the list is missing.

    Raises ParameterInvalid if it is not a list of objects.
    """
    found = said.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ParameterInvalid(name, type(found).__name__, "must be a list of objects")
    return found
