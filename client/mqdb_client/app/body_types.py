"""Types of bodies: the types of a value, by name, and the types that an annotation accepts.

JSON does not record the type of a value. So a message carries the type names, and a reader compares them with the types
of the value that it has read. A name also lists the bases, because the reader may not have the class itself:
`shop.Paid/shop.Event`.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache
from hashlib import blake2b
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, BeforeValidator, PlainValidator, WrapValidator

from mqdb.common.user_error import class_name

#: Containers, which hold values of any type. An instance of any other class is treated as a whole.
CONTAINERS: Final = frozenset({dict, list, tuple, set, frozenset})

UNIONS: Final = (Union, UnionType)

_WRAPPERS: Final = (Annotated, Required, NotRequired)
_KEY: Final = "key:"
_LAYOUT: Final = "#"


@lru_cache(maxsize=4096)
def _type_name(cls: type) -> str:
    return "/".join(class_name(each) for each in cls.__mro__ if each is not object)


def _name_of(value: object) -> str:
    return _type_name(type(value))  # type: ignore[arg-type]  # mypy confuses the __hash__ of instances with that of the class


#: The names of JSON's own types.
JSON_TYPES: Final = frozenset(map(_type_name, (dict, list, str, int, float, bool, NoneType)))


def types_of(value: object) -> list[str]:
    """The type name of a value, then the type names of the values in its containers, sorted and without duplicates.

    Keys that are not strings are included, as `key:int`. If a container has several types and JSON lacks some of them,
    the last item is a hash of the layout.
    """
    inside = sorted(_types_inside(value))
    names = [_name_of(value), *inside]
    return names if len(inside) < 2 or JSON_TYPES.issuperset(names) else [*names, _layout_of(value)]


def _types_inside(value: Any) -> set[str]:
    if type(value) not in CONTAINERS:
        return set()
    found = set()
    if type(value) is dict:
        found = {f"{_KEY}{_type_name(cls)}" for cls in set(map(type, value)) - {str}}
        value = value.values()
    classes = set(map(type, value))
    found.update(map(_type_name, classes))
    if not classes.isdisjoint(CONTAINERS):
        for each in value:
            found |= _types_inside(each)
    return found


def _layout_of(value: object) -> str:
    return _LAYOUT + blake2b(";".join(_names_in_order(value)).encode(), digest_size=8).hexdigest()


def _names_in_order(value: Any) -> Iterator[str]:
    yield _name_of(value)
    if type(value) in CONTAINERS:
        if type(value) is dict:
            # A TypedDict has its own order.
            value = [value[key] for key in (sorted(value) if set(map(type, value)) == {str} else value)]
        names = [";".join(_names_in_order(each)) for each in value]
        yield from ("(", *(sorted(names) if isinstance(value, Set) else names), ")")


class TakenTypes(NamedTuple):
    """The types named in an annotation. `object` stands for any type."""

    whole: frozenset[type]
    """The types of the value itself."""
    inside: frozenset[type]
    """The types of the values inside containers. The fields of a class are not included."""
    keys: frozenset[type]
    """The types of the keys of dicts."""

    def lack(self, sent: list[str], got: list[str]) -> str | None:
        """The name of a sent type that the annotation accepts but the decoded value does not contain.

        None if the annotation names a type that was not sent: this is an intended conversion.
        """
        whole, *inside = _without_layout(sent)
        if sent == got or not _admits(self.whole, whole):
            return None
        if whole != got[0]:
            return _class_of(whole)
        # A type that is lost in one place may still exist in another.
        lost = inside if set(inside) - JSON_TYPES else set(inside) - set(got[1:])
        for each in sorted(lost, key=JSON_TYPES.__contains__):
            if _admits(self.keys if each.startswith(_KEY) else self.inside, each):
                return _class_of(each)
        return None


def classes_of(types: Iterable[str]) -> list[str]:
    """The class names in a result of `types_of`, without bases and duplicates."""
    return list(dict.fromkeys(map(_class_of, _without_layout(types))))


def _without_layout(types: Iterable[str]) -> list[str]:
    return [each for each in types if not each.startswith(_LAYOUT)]


def _class_of(type_name: str) -> str:
    return type_name.removeprefix(_KEY).partition("/")[0]


def _admits(classes: Iterable[type], type_name: str) -> bool:
    names = type_name.removeprefix(_KEY).split("/")
    # A class known only by name cannot be checked for being a Sequence, so an abstract class counts as any type.
    return any(cls is object or inspect.isabstract(cls) or class_name(cls) in names for cls in classes)


_NONE: Final = frozenset[type]()
_OBJECT: Final = frozenset[type]({object})
_NOTHING: Final = TakenTypes(_NONE, _NONE, _NONE)


def taken_types(annotation: Any, above: tuple[Any, ...] = ()) -> TakenTypes:
    """The types that an annotation accepts.

    `above` are the annotations that contain `annotation`, because aliases can be recursive.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    cls = annotation if origin is None else origin
    if any(annotation is each for each in above):
        return TakenTypes(_OBJECT, _OBJECT, _OBJECT)
    above = (*above, annotation)
    if hasattr(cls, "__value__"):  # `type Amount = int | Decimal`
        return taken_types(cls.__value__, above)
    if origin in _WRAPPERS:
        return taken_types(arguments[0], above)
    if isinstance(annotation, NewType):
        return taken_types(annotation.__supertype__, above)
    if origin in UNIONS:
        return _together(arguments, above)
    if origin is Literal:
        return TakenTypes(frozenset(map(type, arguments)), _NONE, _NONE)
    if hasattr(cls, "__required_keys__"):  # a TypedDict, from any module
        return _container(dict, (), get_type_hints(cls).values(), above)
    if annotation is Any or cls is object or not isinstance(cls, type):
        return TakenTypes(_OBJECT, _OBJECT, _OBJECT)
    if cls not in CONTAINERS and not inspect.isabstract(cls):
        return TakenTypes(frozenset({cls}), _NONE, _NONE)
    if not arguments:
        return TakenTypes(frozenset({cls}), _OBJECT, _OBJECT)
    keys = arguments[:1] if issubclass(cls, Mapping) else ()
    return _container(cls, keys, arguments[len(keys) :], above)


def _container(cls: type, keys: Iterable[Any], values: Iterable[Any], above: tuple[Any, ...]) -> TakenTypes:
    of_keys, of_values = _together(keys, above), _together(values, above)
    return TakenTypes(frozenset({cls}), of_values.whole | of_values.inside, of_keys.whole | of_values.keys)


def _together(annotations: Iterable[Any], above: tuple[Any, ...]) -> TakenTypes:
    found = [taken_types(each, above) for each in annotations if each is not ...]
    return TakenTypes(*(_NONE.union(*parts) for parts in zip(*found, strict=True))) if found else _NOTHING


def has_validators(annotation: Any) -> bool:
    """Check whether an annotation has user-defined functions, which may turn any value into any other."""
    return any(
        isinstance(each, AfterValidator | BeforeValidator | PlainValidator | WrapValidator)
        for each in getattr(annotation, "__metadata__", ())
    ) or any(map(has_validators, get_args(annotation)))
