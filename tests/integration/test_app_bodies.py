"""Bodies of an application through a real topic: each comes back as it was, or somebody says why not."""

import asyncio
import enum
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any, Final, Literal, NamedTuple, NewType

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue, SecretStr
from sqlalchemy import Connection, text

from mqdb.common.topic import dlq_topic
from mqdb.errors import BodyEmpty, BodyInvalid
from mqdb_client import App, ConsumeFromWhere, ReceivedMessage
from mqdb_client.app.body_types import JSON_TYPES, types_of
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until


class Status(enum.StrEnum):
    PAID = "paid"
    NULL = "null"
    NUMBER = "17"


class OldStatus(str, enum.Enum):  # noqa: UP042
    PAID = "paid"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Order:
    number: int
    note: str | None
    at: datetime


class Model(BaseModel):
    tags: set[str]
    amounts: dict[str, Decimal]
    parent: "Model | None" = None


class Secret(BaseModel):
    password: SecretStr


class Point(NamedTuple):
    x: int
    y: float


Name = NewType("Name", str)

#: Values that are their own JSON.
PLAIN: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
TYPED: Final = st.dates() | st.builds(Order, st.integers(), st.none(), st.datetimes()) | st.tuples(st.integers())
ANY: Final = PLAIN | st.binary() | TYPED | st.lists(TYPED, min_size=1, max_size=2)

DECIMALS: Final = st.decimals(allow_nan=False, allow_infinity=False)
MODELS: Final = st.builds(
    Model,
    tags=st.sets(st.text(), max_size=2),
    amounts=st.dictionaries(st.text(), DECIMALS, max_size=2),
    parent=st.none() | st.just(Model(tags={"a"}, amounts={"b": Decimal("1.10")})),
)

#: A listener for each, and its values.
BODIES: Final[list[tuple[Any, st.SearchStrategy[Any]]]] = [
    (str, st.text()),
    (bytes, st.binary()),
    (Status, st.sampled_from(Status)),
    (OldStatus, st.sampled_from(OldStatus)),
    (Literal["a", "null", 17, Status.PAID], st.sampled_from(["a", "null", 17, Status.PAID])),
    (str | None, st.text() | st.none() | st.just("null")),
    (str | int, st.text() | st.integers() | st.integers().map(str)),
    (Name, st.text()),
    (bytes | None, st.binary() | st.none() | st.just(b"null")),
    (bytes | str, st.binary() | st.text()),
    (Status | str | None, st.sampled_from(Status) | st.text() | st.none()),
    (int | float | bool, st.integers() | st.floats() | st.booleans()),
    (int | Level, st.integers() | st.just(Level.LOW)),
    (str | uuid.UUID, st.uuids() | st.text() | st.uuids().map(str)),
    (date | datetime | timedelta, st.dates() | st.datetimes() | st.timedeltas()),
    (Decimal, DECIMALS),
    (Order, st.builds(Order, st.integers(), st.none() | st.text(), st.datetimes(timezones=st.timezones()))),
    (Model, MODELS),
    (Point, st.builds(Point, st.integers(), st.floats())),
    (list[Order | int] | None, st.lists(st.builds(Order, st.integers(), st.none(), st.datetimes()) | st.integers())),
    (dict[str, int | str], st.dictionaries(st.text(), st.integers() | st.text(), max_size=3)),
    (dict[int, list[date]], st.dictionaries(st.integers(), st.lists(st.dates(), max_size=2), max_size=2)),
    (tuple[int, str], st.tuples(st.integers(), st.text())),
    (frozenset[int], st.frozensets(st.integers())),
    (JsonValue, PLAIN),
    (Secret, st.builds(Secret, password=st.text(min_size=1).map(SecretStr))),
    (Any, ANY),
    (object, ANY),
    (dict[str, Any], st.dictionaries(st.text(), ANY, max_size=2)),
    (list, st.lists(ANY, max_size=2)),
]

SECRET: Final = next(number for number, (annotation, _) in enumerate(BODIES) if annotation is Secret)
#: These take values that JSON does not hold, and refuse them.
UNTYPED: Final = frozenset(range(len(BODIES) - 4, len(BODIES)))


class Shop:
    """An application with a listener for each annotation, which one group has by their tags."""

    def __init__(self, broker: Connection, database: Database) -> None:
        topic(broker, "bodies")
        self._broker = broker
        self.app = App("shop", dsn=database.dsn)
        self.app.configure_group("readers", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        self.heard: dict[str, Any] = {}
        for number, (annotation, _) in enumerate(BODIES):
            self.app.listener("bodies", group="readers", tag=f"t{number}", retries=0)(self._function(annotation))

    def _function(self, annotation: Any) -> Any:
        def listen(body: Any, message: Any) -> None:
            self.heard[message.keys[0]] = body

        listen.__annotations__ = {"body": annotation, "message": ReceivedMessage, "return": None}
        return listen

    def refused(self) -> set[str]:
        """The keys of the dead letters."""
        statement = text("SELECT keys FROM mqdb.message WHERE topic = :topic")
        return set(self._broker.scalars(statement, {"topic": dlq_topic("readers")}))


_PAIRS: Final = st.lists(
    st.integers(0, len(BODIES) - 1).flatmap(lambda number: st.tuples(st.just(number), BODIES[number][1])),
    min_size=10,
    max_size=30,
)


def test_each_value_comes_back_as_it_was_or_somebody_says_why_not(broker: Connection, database: Database) -> None:
    shop, keys = Shop(broker, database), count()
    come, dead = Counter[int](), Counter[int]()

    # Not shrunk: each failing example waits for what does not come.
    @settings(phases=[Phase.generate])
    @given(_PAIRS)
    def play(pairs: list[tuple[int, Any]]) -> None:
        sent: dict[str, tuple[int, Any]] = {}
        for number, value in pairs:
            key = f"k{next(keys)}"
            try:
                shop.app.send("bodies", value, tag=f"t{number}", keys=key)
            except (BodyInvalid, BodyEmpty):
                continue
            sent[key] = number, value
        wait_until(lambda: shop.heard.keys() | shop.refused() >= sent.keys())
        for key, (number, value) in sent.items():
            if key in shop.heard:
                come[number] += 1
                got = shop.heard[key]
                assert (types_of(got), got) == (types_of(value), value), BODIES[number]
            else:
                dead[number] += 1
                assert number in UNTYPED, (BODIES[number], value)
                assert not JSON_TYPES.issuperset(types_of(value)), value

    async def work() -> None:
        async with shop.app.consuming():
            await asyncio.to_thread(play)
        await shop.app.aclose()

    asyncio.run(work())
    assert SECRET not in come
    assert 0 < dead.total() < come.total()
