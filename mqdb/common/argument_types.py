"""Argument types: the annotations of parameters and fields are the rules for their values.

Without these checks a wrong type would show up late: as an AttributeError somewhere below, or as a statement that
PostgreSQL refuses.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeGuard, TypeVar, get_args, get_origin

from mqdb.common.property import find_unstorable
from mqdb.errors import ParameterInvalid

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = ParamSpec("P")
T = TypeVar("T")

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_WORDS: Final = {
    str: "a text of Unicode characters other than NUL",
    int: "a whole number of 64 bits",
    bool: "True or False",
    bytes: "bytes",
    NoneType: "None",
}


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number. A bool does not count as a whole number, although it is an int in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function raise ParameterInvalid for an argument that does not match the annotation of its parameter."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        kinds = _kinds(function)
        # Surplus and unknown arguments are left to the call.
        for name, value in [*zip(kinds, arguments, strict=False), *options.items()]:
            _check(name, kinds.get(name, Any), value)
        return function(*arguments, **options)

    return call


def check_fields(instance: "DataclassInstance") -> None:
    """Raise ParameterInvalid for the first field whose value does not match its annotation."""
    for each in fields(instance):
        _check(each.name, each.type, getattr(instance, each.name))


@cache
def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = signature(function).parameters.values()
    return {each.name: Any if each.annotation is Parameter.empty else each.annotation for each in parameters}


def _check(name: str, kind: Any, value: object) -> None:
    if not _allows(kind, value):
        # A value that is not a string may still contain the secret.
        raise ParameterInvalid(name, "***" if name == "secret" else value, f"must be {_described(kind)}")


def _allows(kind: Any, value: object) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind is int:
        return is_whole(value) and _LOWEST <= value <= _HIGHEST
    if kind is str:
        return isinstance(value, str) and not find_unstorable(value)
    if origin is UnionType:
        return any(_allows(each, value) for each in arguments)
    if not isinstance(value, origin or kind) or (origin and isinstance(value, str)):  # a string is no list
        return False
    if origin is Mapping:
        return all(_allows(arguments[0], key) and _allows(arguments[1], each) for key, each in value.items())
    return origin is None or origin is Callable or all(_allows(arguments[0], each) for each in value)


def _described(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        *others, last = map(_described, arguments)
        return f"{', '.join(others)}, or {last}"
    if origin in (Collection, Sequence, tuple):
        return f"a {'tuple' if origin is tuple else 'list'}, each item {_described(arguments[0])}"
    if origin is Mapping:
        return f"a dict of {_described(arguments[0])}: {_described(arguments[1])}"
    return "a function" if origin is Callable else _WORDS.get(kind, f"a {kind.__name__}")
