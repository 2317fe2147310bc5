"""Application bodies pass through a topic: for any type and value, a listener receives the value, or a refusal."""

import asyncio
import enum
import itertools
import uuid
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from mqdb.errors import BodyInvalid
from mqdb_client import App, ConsumeFromWhere
from tests.fixtures.broker import topic
from tests.fixtures.fuzz import fuzz_cases
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

_numbers = itertools.count()

#: In one example, which starts a consumer.
_VALUES = 20


class Status(enum.StrEnum):
    PAID = "paid"


class Level(enum.IntEnum):
    ONE = 1


@dataclass
class Base:
    number: int


@dataclass
class Derived(Base):
    more: int = 0


class Typed(NamedTuple):
    """A type with some of its values."""

    annotation: Any
    values: st.SearchStrategy[Any]
    is_clear: bool = True
    """Whether JSON determines the type unambiguously, so that no value may be refused."""


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["null", "1", "1.5", "true", '"x"', "paid", "2020-01-01", "00:00:00", "P1D", str(uuid.UUID(int=1))]
)
_DATETIMES = st.datetimes().map(lambda each: each.replace(fold=0)) | st.dates().map(
    lambda day: datetime.combine(day, time())
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)

_SIMPLE = [
    Typed(str, _TEXTS),
    Typed(bytes, _TEXTS.map(str.encode)),
    Typed(bytes, st.binary(min_size=1), is_clear=False),
    Typed(datetime, st.datetimes(), is_clear=False),
    Typed(int, st.integers(-(2**70), 2**70)),
    Typed(float, st.floats(allow_nan=False, allow_infinity=False)),
    Typed(bool, st.booleans()),
    Typed(type(None), st.none()),
    Typed(Status, st.just(Status.PAID)),
    Typed(Level, st.just(Level.ONE)),
    Typed(Literal["a", 1], st.sampled_from(["a", 1])),
    Typed(uuid.UUID, st.uuids()),
    Typed(Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    Typed(date, st.dates()),
    Typed(datetime, _DATETIMES),
    Typed(timedelta, st.timedeltas()),
    Typed(Path, st.just(Path("a/b"))),
    Typed(Base, st.builds(Base, st.integers())),
    Typed(Base, st.builds(Derived, st.integers(), st.integers()), is_clear=False),
    Typed(date, _DATETIMES, is_clear=False),
    Typed(str, st.just(Status.PAID), is_clear=False),
    Typed(int, st.booleans() | st.just(Level.ONE), is_clear=False),
    Typed(object, _JSON),
    Typed(Any, _TEXTS | st.binary(min_size=1) | _DATETIMES | st.tuples(_JSON), is_clear=False),
]


def in_field(typed: Typed) -> Typed:
    made: Any = make_dataclass(f"Made{next(_numbers)}", [("field", typed.annotation)])
    return Typed(made, st.builds(made, typed.values), typed.is_clear)


def larger(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    """Types composed of the given ones."""

    def in_union(one: Typed, other: Typed) -> Typed:
        return Typed(Union[one.annotation, other.annotation], one.values | other.values, is_clear=False)  # noqa: UP007

    def in_list(of: Typed) -> Typed:
        return Typed(_of(list, of.annotation), st.lists(of.values, max_size=3), of.is_clear)

    def in_tuple(of: Typed) -> Typed:
        return Typed(_of(tuple, of.annotation, ...), st.tuples(of.values), of.is_clear)

    def in_dict(of: Typed) -> Typed:
        return Typed(_of(dict, str, of.annotation), st.dictionaries(_TEXTS, of.values, max_size=3), of.is_clear)

    def in_untyped_dict(of: Typed) -> Typed:
        return Typed(dict[str, Any], st.dictionaries(_TEXTS, of.values, max_size=3), is_clear=False)

    return st.one_of(
        *map(inner.map, (in_list, in_tuple, in_dict, in_untyped_dict, in_field)), st.builds(in_union, inner, inner)
    )


def _of(container: Any, *annotations: Any) -> Any:
    return container[annotations]


_TYPES = st.recursive(st.sampled_from(_SIMPLE), larger, max_leaves=4)

pairs = _TYPES.flatmap(lambda typed: st.tuples(st.just(typed), typed.values))


def shape(value: Any) -> Any:
    """The value and all its parts, each with its type: 1 is not True, and 0.0 is not -0.0."""
    if isinstance(value, dict):
        return type(value), [(shape(key), shape(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [shape(each) for each in value]
    if is_dataclass(value):
        return type(value), [shape(getattr(value, each.name)) for each in fields(value)]
    return type(value), repr(value)


@settings(
    max_examples=max(1, min(fuzz_cases(), 1_000) // 4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sent=st.lists(pairs, min_size=1, max_size=_VALUES))
def test_a_value_comes_back_from_a_topic_or_is_refused(
    served: Connection, database: Database, sent: list[tuple[Typed, Any]]
) -> None:
    number = next(_numbers)
    name, group = f"bodies-{number}", f"group-{number}"
    topic(served, name, queues=1)
    app, got = App("shop", dsn=database.dsn), dict[str, Any]()
    app.configure_group(group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    for place, (typed, _) in enumerate(sent):
        app.listener(name, group=group, tag=str(place), retries=0)(listener_of(typed.annotation, str(place), got))

    def dead() -> dict[str, str]:
        return dict(database.rows("SELECT tags, error FROM mqdb.dlq WHERE group_name = %s", group))

    async def work() -> set[str]:
        refused = set()
        async with app.consuming():
            for place, (_, value) in enumerate(sent):
                try:
                    await app.asend(name, value, tag=str(place))
                except BodyInvalid:
                    refused.add(str(place))
            await asyncio.to_thread(wait_until, lambda: len(got) + len(dead()) + len(refused) == len(sent))
        await app.aclose()
        return refused

    refused = asyncio.run(work())
    died = dead()

    for place, (typed, value) in enumerate(sent):
        if (tag := str(place)) in got:
            assert shape(got[tag]) == shape(value)
        else:
            assert not typed.is_clear, (typed.annotation, value, died.get(tag))
            assert tag in refused or died[tag].startswith("the body cannot be read as ")


def listener_of(annotation: Any, tag: str, got: dict[str, Any]) -> Any:
    def listen(body: Any) -> None:
        got[tag] = body

    listen.__annotations__ = {"body": annotation}
    return listen
