"""Bodies of JSON."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mqdb.errors import ParameterInvalid

#: A body of JSON is read in the loop, where all clients wait meanwhile.
_MOST_BODY_BYTES: Final = 2**20


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds_of(time: datetime | None) -> int:
    """Milliseconds since 1970, as bodies tell a time; 0 for none."""
    return 0 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def as_json(said: object) -> bytes:
    """The body of an answer, without blanks: the client in Go reads the addresses of a route with them."""
    return json.dumps(said, separators=(",", ":")).encode()


def parsed_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, whose texts PostgreSQL can store. Raises ParameterInvalid."""
    if len(body) > _MOST_BODY_BYTES:
        raise ParameterInvalid("body", len(body), f"has more than {_MOST_BODY_BYTES:,} bytes")
    try:
        found = json.loads(body)
        texts = "".join(_texts(found))
        texts.encode()  # which half of a surrogate pair stops
    except (ValueError, RecursionError) as error:
        raise ParameterInvalid("body", len(body), f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ParameterInvalid("body", type(found).__name__, "must be an object")
    if "\0" in texts:
        raise ParameterInvalid("body", len(body), "holds U+0000, which PostgreSQL cannot store")
    return found


def _texts(said: object) -> Iterator[str]:
    """All of a JSON value, the names too."""
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
    """A text of a body, which has to be there. Raises ParameterInvalid."""
    found = said.get(name)
    if not isinstance(found, str) or not found:
        raise ParameterInvalid(name, found, "is missing")
    return found


def dicts(said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list in a body; [] if there is no such list. Raises ParameterInvalid."""
    found = said.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ParameterInvalid(name, type(found).__name__, "must be a list of objects")
    return found
