"""Checks whether a value, and each value in a container, can be read back from its JSON as its own type."""

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from functools import lru_cache
from math import isfinite
from types import NoneType
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from mqdb.common.user_error import class_name
from mqdb_client.app.body_types import CONTAINERS, JSON_TYPES, types_of

_SCALARS: Final = frozenset({str, int, float, bool, NoneType})

#: The maximum number of errors reported for one body: a large body may have a million.
_MOST_FAULTS: Final = 5


def json_of(value: object) -> bytes:
    """A value as JSON. Raises PydanticSerializationError, and the errors of the user's code."""
    return to_json(value, inf_nan_mode="null")


def loss_in(value: object, body: bytes) -> str | None:
    """The place and reason if `body`, the JSON of `value`, does not read back as `value` with the same type; else None.

    The text does not contain the value, which may be secret. Raises the errors of the user's code, and ValueError for
    JSON that other programs cannot read, such as NaN.
    """
    parsed = from_json(body, allow_inf_nan=False)
    if JSON_TYPES.issuperset(types_of(value)) and parsed == value:
        return None
    return _loss(value, parsed, (), body)


def faults(error: ValidationError, path: Sequence[object] = ()) -> str:
    """The places and reasons of the errors, without the body, which may be confidential."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{_place((*path, *each['loc']))}: {each['msg']}" for each in details[:_MOST_FAULTS]]
    return "; ".join(told + [f"and {len(details) - len(told)} more"] * (len(details) > len(told)))


def _place(path: Sequence[object]) -> str:
    return ".".join(str(each) if isinstance(each, str | int) else type(each).__name__ for each in path) or "body"


def _loss(value: Any, parsed: Any, path: tuple[object, ...], body: bytes | None = None) -> str | None:
    cls = type(value)
    if cls in _SCALARS:
        return _difference(value, parsed, path)
    if cls not in CONTAINERS:
        return _loss_of_instance(value, cls, body or json_of(value), path)
    keys: Iterable[object] = range(len(value))
    if cls is dict:
        if loss := _loss_of_keys(value, parsed, path):
            return loss
        keys, value, parsed = list(value), value.values(), parsed.values()
    for key, each, read in zip(keys, value, parsed, strict=True):
        if loss := _loss(each, read, (*path, key)):
            return loss
    return None


def _loss_of_instance(value: object, annotation: Any, body: bytes, path: tuple[object, ...]) -> str | None:
    try:
        return _difference(value, _adapter(annotation).validate_json(body), path)
    except ValidationError as error:
        return faults(error, path)


def _loss_of_keys(value: dict[Any, Any], parsed: dict[str, Any], path: tuple[object, ...]) -> str | None:
    classes = set(map(type, value))
    if len(classes) > 1:
        names = ", ".join(sorted(map(class_name, classes)))
        return f"{_place(path)}: has keys of several types, {names}, which are all text in JSON"
    if classes <= {str}:
        return _difference(list(value), list(parsed), path)
    keys = dict.fromkeys(value)
    return _loss_of_instance(keys, dict[classes.pop(), None], json_of(keys), path)  # type: ignore[misc]


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _difference(sent: Any, back: Any, path: tuple[object, ...]) -> str | None:
    """The first difference between two values, in type or value.

    Values are compared by `==`, and objects by their fields.
    """
    cls = type(sent)
    if cls is type(back):
        pairs = None if cls in _SCALARS else _parts(sent, back)
        if pairs is None:
            is_same = sent == back
        elif is_same := len(pairs[0]) == len(pairs[1]):
            for (name, part), (_, other) in zip(*pairs, strict=True):
                if found := _difference(part, other, (*path, name)):
                    return found
        if is_same:
            return None
        reason = "would come back as another value; JSON does not hold all of it"
    elif cls is int and type(back) is float and sent == back:
        return None  # in a float field, which may hold an int according to PEP 484
    elif cls is float and not isfinite(sent):
        return f"{_place(path)}: {sent} is not a number in JSON"
    else:
        reason = f"would come back as {class_name(type(back))}"
    return f"{_place(path)}: {class_name(cls)} {reason}"


_Parts = list[tuple[object, Any]]


def _parts(sent: Any, back: Any) -> tuple[_Parts, _Parts] | None:
    """The parts of two values of the same class, in the same order; None if the values are compared as a whole."""
    if isinstance(sent, BaseModel):
        return _of_model(sent), _of_model(back)
    if is_dataclass(sent):
        names = [each.name for each in fields(sent) if each.compare]
        return [(name, getattr(sent, name)) for name in names], [(name, getattr(back, name)) for name in names]
    if isinstance(sent, dict):
        return _of_dict(sent), _of_dict(back)
    if isinstance(sent, list | tuple | deque):
        return list(enumerate(sent)), list(enumerate(back))
    if isinstance(sent, datetime | time):
        return _of_time(sent), _of_time(back)
    if isinstance(sent, Set):
        same = {each: each for each in back}
        return list(enumerate(sent)), [(0, same[each]) for each in sent if each in same]
    return None


def _of_model(model: BaseModel) -> _Parts:
    known = [(name, model.__dict__.get(name)) for name in type(model).model_fields]
    return [*known, *(model.model_extra or {}).items(), *(model.__pydantic_private__ or {}).items()]


def _of_time(value: datetime | time) -> _Parts:
    """The parts of a time: whether it has a zone, its UTC offset (more precise than `fold`), and its wall-clock time.

    `==` ignores whether there is a zone, and treats an ambiguous wall-clock time as unequal to the same time in a zone
    with the same offset.
    """
    offset = value.utcoffset()
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return [
        ("zone", value.tzinfo is not None),
        ("offset", offset),
        ("fold", value.fold if offset is None else 0),
        ("", clock),
    ]


def _of_dict(value: dict[Any, Any]) -> _Parts:
    return [part for key, each in value.items() for part in ((key, key), (key, each))]
