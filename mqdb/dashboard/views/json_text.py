"""JSON bodies: shown as a tree, or changed in one place while all other characters stay as they were sent."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mqdb.errors import ParameterInvalid

#: A larger tree would not help a reader.
_MOST_NODES: Final = 1_000

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()

#: A name with a dot before it, a name in quotes in brackets, or an index in brackets.
_STEP: Final = re.compile(r"\.?([A-Za-z_][\w-]*)|\[\s*(\d{1,9})\s*\]|\[\s*(\"(?:[^\"\\]|\\.)*\")\s*\]", re.ASCII)
#: The word before the path of a value to remove. A field may have the name `remove`, too.
_REMOVE: Final = re.compile(r"remove\s+(?=[^=\s])")


class JsonNode(NamedTuple):
    """A value in a tree. A number, a string or a constant has a text; an object or array has brackets and children."""

    label: str | None
    """The name or the index of the value in its parent; None for the root."""
    text: str | None
    brackets: str
    children: list["JsonNode"]


class _Literal(str):
    """A number as it was sent, with all its digits."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """The members of an object in their order, including those with repeated names."""


def json_tree(text: str) -> JsonNode | None:
    """The tree of a JSON object or array; None for any other text, or if it has more than 1,000 values."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found = json.loads(
            text, parse_int=_Literal, parse_float=_Literal, parse_constant=_refuse, object_pairs_hook=_Pairs
        )
        nodes = iter(range(_MOST_NODES))
        return _node(None, found, nodes)
    except (ValueError, RecursionError, StopIteration):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _node(label: str | None, value: Any, nodes: Iterator[int]) -> JsonNode:
    next(nodes)
    if isinstance(value, _Pairs):
        return JsonNode(label, None, "{}", [_node(name, each, nodes) for name, each in value])
    if isinstance(value, list):
        return JsonNode(label, None, "[]", [_node(str(index), each, nodes) for index, each in enumerate(value)])
    text = str(value) if isinstance(value, _Literal) else json.dumps(value, ensure_ascii=False)
    return JsonNode(label, text, "", [])


@dataclass(frozen=True)
class JsonChange:
    """A change of one value in JSON texts: `customer.country = "CZ"`, `items[0].price = 10`, `remove note`."""

    path: tuple[str | int, ...]
    value: str | None
    """The new value as JSON; None removes the value."""

    @classmethod
    def parse(cls, text: str) -> "JsonChange":
        """Parse a change in the form that people write. Raises ParameterInvalid."""
        wanted = text.strip()
        removal = _REMOVE.match(wanted)
        path, rest = _path(text, wanted, removal.end() if removal else 0)
        if removal and not rest:
            return cls(path, None)
        value = rest.removeprefix("=").strip()
        if removal or not rest.startswith("=") or not value:
            raise ParameterInvalid("change", text, 'write PATH = JSON, such as customer.country = "CZ", or remove PATH')
        try:
            json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise ParameterInvalid("change", text, f"{value} is not JSON; a text needs double quotes") from None
        return cls(path, value)

    def apply(self, text: str) -> str:
        """Return the changed text. If an object lacks the last name of the path, the name is added.

        Raises ParameterInvalid for a text that is not JSON, and for a path that does not exist.
        """
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise ParameterInvalid("body", text[:80], "is not JSON") from None
        begin = _skip(text, 0)
        for number, step in enumerate(self.path):
            is_last = number == len(self.path) - 1
            members = list(_members(text, begin))
            span = next((member for member in reversed(members) if member.name == step), None)
            if span is None:
                if is_last and self.value is not None and text[begin] == "{" and isinstance(step, str):
                    end = members[-1].end if members else begin + 1
                    comma = ", " if members else ""
                    return f"{text[:end]}{comma}{json.dumps(step, ensure_ascii=False)}: {self.value}{text[end:]}"
                raise ParameterInvalid("change", self._written(number + 1), "the body has no such value")
            if is_last:
                if self.value is not None:
                    return text[: span.begin] + self.value + text[span.end :]
                return _without(text, members, members.index(span))
            begin = span.begin
        raise AssertionError("a path has a step")

    def _written(self, steps: int) -> str:
        parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path[:steps])
        return "".join(parts).removeprefix(".")


def _path(text: str, wanted: str, begin: int) -> tuple[tuple[str | int, ...], str]:
    """The steps of the path that begins there, and the text after it. Raises ParameterInvalid, which names `text`."""
    steps: list[str | int] = []
    place = begin
    while found := _STEP.match(wanted, place):
        name, index, quoted = found.groups()
        try:
            steps.append(int(index) if index else name or json.loads(quoted))
        except ValueError:
            raise ParameterInvalid("change", text, f"{quoted} is not a JSON string") from None
        place = found.end()
    if not steps:
        raise ParameterInvalid("change", text, 'write PATH = JSON, such as customer.country = "CZ", or remove PATH')
    return tuple(steps), wanted[place:].lstrip()


class _Member(NamedTuple):
    """A value in an object or array, and its place in the text."""

    name: str | int
    outer: int
    """The beginning of the name; in an array, the beginning of the value."""
    begin: int
    end: int


def _members(text: str, begin: int) -> Iterator[_Member]:
    """The members of the object or array at `begin`; empty for any other value. The text has to be JSON."""
    if text[begin] not in "{[":
        return
    is_object = text[begin] == "{"
    place, index = _skip(text, begin + 1), 0
    while text[place] not in "}]":
        outer, name = place, index
        if is_object:
            name, place = _DECODER.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
        _, end = _DECODER.raw_decode(text, place)
        yield _Member(name, outer, place, end)
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
        index += 1


def _without(text: str, members: list[_Member], number: int) -> str:
    """The text without a member and without one of the commas beside the member."""
    member = members[number]
    if number + 1 < len(members):
        return text[: member.outer] + text[members[number + 1].outer :]
    begin = members[number - 1].end if number else member.outer
    return text[:begin] + text[member.end :]


def _skip(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    assert found is not None
    return found.end()
