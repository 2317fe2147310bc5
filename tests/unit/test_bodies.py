"""Application bodies: a value comes back unchanged, or the send or the reader reports why not."""

import enum
import ipaddress
import math
import re
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NoReturn, Optional, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    RootModel,
    SecretBytes,
    SecretStr,
    StringConstraints,
    computed_field,
    field_serializer,
    field_validator,
)
from typing_extensions import TypeAliasType, TypedDict

from mqdb.common.message import Message, MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import BodyInvalid, BodyUnreadable
from mqdb_client.app.bodies import BODY_PROPERTY, BodyReader, encode

NEW_YEAR = datetime.fromisoformat("2020-01-01")

T = TypeVar("T")
Number = NewType("Number", int)
Name = NewType("Name", str)
Amount = TypeAliasType("Amount", "int | Decimal")
Tree = TypeAliasType("Tree", "list[Tree] | int")


class Status(enum.StrEnum):
    PAID = "paid"
    NULL = "null"


class OldStatus(str, enum.Enum):  # noqa: UP042
    PAID = "paid"


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.Enum):
    RED = (1, 2)


@dataclass
class Order:
    number: int
    paid: bool = False


@dataclass
class Express(Order):
    hours: int = 1


@dataclass
class Payment:
    number: int
    paid: bool = False


@dataclass(eq=False)
class Incomparable:
    at: datetime


@dataclass
class Holder:
    value: Any


@dataclass
class Weight:
    grams: float


class Card(BaseModel):
    kind: Literal["card"] = "card"
    digits: str


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"


class Box(BaseModel, Generic[T]):
    content: T


class Aliased(BaseModel):
    number: int = Field(alias="orderNumber")


class Point(NamedTuple):
    x: int
    y: int = 0


class Row(TypedDict):
    at: datetime
    of: Any


class Swap(TypedDict):
    a: Any
    b: date | str


Roots = RootModel[list[int]]


class Remembering(BaseModel):
    number: int
    _seen: int = PrivateAttr(default=0)

    @cached_property
    def double(self) -> int:
        return 2 * self.number


def remembered() -> Remembering:
    """A value with a cached property that has been read."""
    made = Remembering(number=4)
    assert made.double == 8
    return made


def received(body: bytes | str, mark: str | None) -> ReceivedMessage:
    queue = MessageQueue("orders", "broker-a", 0)
    properties = {} if mark is None else {BODY_PROPERTY: mark}
    content = body.encode() if isinstance(body, str) else body
    return ReceivedMessage(queue, 0, 1, uuid.uuid4(), None, "", properties, content, 0, 0, "here", 0, 3, 0, 0, 1)


def sent(value: object) -> ReceivedMessage:
    body = encode(value)
    return received(body.content, body.mark)


def read(annotation: Any, message: ReceivedMessage) -> Any:
    reader = BodyReader(annotation, "it")
    reader.complete()
    return reader.read(message)


def same(value: object, other: object) -> bool:
    """Whether two values are equal and have the same types throughout.

    (Values of different types have different reprs here.)
    """
    return type(value) is type(other) and (value == other or isinstance(value, Incomparable))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Status, Status.PAID),
        (OldStatus, OldStatus.PAID),
        (Status | None, None),
        (Status | None, Status.NULL),
        (Status | str, Status.PAID),
        (str | Status, "paid"),
        (str | OldStatus, OldStatus.PAID),
        (Literal["a", "b"], "a"),
        (Literal["a", 1, Status.PAID], 1),
        (Literal["paid", Status.PAID], "paid"),
        (str | None, "null"),
        (Optional[str], None),  # noqa: UP045
        (str | int, "17"),
        (str | int, 17),
        (Name, "x"),
        (Number, 4),
        (Annotated[str, StringConstraints(max_length=3)], "abc"),
        (bytes | None, b"null"),
        (bytes | None, None),
        (bytes | str, "x"),
        (bytes | str, b"x"),
        (bytes | str | Order, Order(1)),
        (Any, "17"),
        (Any, b"\xff"),
        (Any, {"a": [1, 2.0, None, True, "x"]}),
        (object, "x"),
        (object, None),
        (dict[str, Any], {"a": {"b": []}}),
        (dict, {"a": 1}),
        (list, [1, "2"]),
        (JsonValue, {"a": [1]}),
        (JsonValue, "1"),
        (Tree, [[1], 2]),
        (Amount, Decimal("1.10")),
        (int | float, 1.0),
        (float | int, 1),
        (bool | int, True),
        (int | bool, 1),
        (int | Level, Level.LOW),
        (str | uuid.UUID, uuid.UUID(int=4)),
        (uuid.UUID | str, str(uuid.UUID(int=4))),
        (date | datetime, NEW_YEAR),
        (datetime | date, date(2020, 1, 1)),
        (list[int] | tuple[int, ...], (1, 2)),
        (list[int] | set[int], {1}),
        (list[str | uuid.UUID], [str(uuid.UUID(int=4))]),
        (dict[str, datetime | str], {"a": "2020-01-01T00:00:00"}),
        (Order | Payment, Payment(1)),
        (Order | Express, Express(1)),
        (Order | dict[str, int], {"number": 1}),
        (Annotated[Card | Cash, Field(discriminator="kind")], Cash()),
        (Card | Cash, Card(digits="1")),
        (Sequence[int], [1]),
        (Mapping[str, int], {"a": 1}),
        (int, 2**200),
        (float, -0.0),
        (float, 1e300),
        (bool, True),
        (None, None),
        (Decimal, Decimal("-0.10")),
        (uuid.UUID, uuid.UUID(int=4)),
        (Path, Path("a/b")),
        (timedelta, timedelta(days=-1, microseconds=3)),
        (datetime, datetime(2020, 1, 1, tzinfo=UTC)),
        (datetime, datetime(2020, 7, 1, 1, 2, 3, 4, tzinfo=ZoneInfo("Europe/Berlin"))),
        (time, time(1, 2, 3, 4)),
        (complex, 1 + 2j),
        (Fraction, Fraction(1, 3)),
        (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
        (re.Pattern[str], re.compile("a+")),
        (Point, Point(1, 2)),
        (tuple[int, str], (1, "a")),
        (frozenset[int], frozenset({1})),
        (deque[int], deque([1])),
        (OrderedDict[str, int], OrderedDict(a=1)),
        (Order, Order(17, True)),
        (Express, Express(17)),
        (Incomparable, Incomparable(NEW_YEAR)),
        (list[Order], [Order(1), Order(2)]),
        (dict[str, Order | None], {"a": Order(1), "b": None}),
        (dict[int, str], {1: "a"}),
        (dict[Status, Level], {Status.PAID: Level.LOW}),
        (dict[str, bytes], {"a": b"x"}),
        (dict[str, datetime], {"a": NEW_YEAR}),
        (Row, {"at": NEW_YEAR, "of": {"a": 1}}),
        (list[Order | set[str]], [Order(1), {"b"}, {"c"}]),
        (Aliased, Aliased(orderNumber=4)),
        (Box[int], Box[int](content=1)),
        (Box[datetime], Box[datetime](content=NEW_YEAR)),
        (Roots, Roots([1])),
        (Remembering, remembered()),
        (Holder, Holder({"a": 1})),
    ],
)
def test_a_value_comes_back_as_it_was(annotation: Any, value: object) -> None:
    got = read(annotation, sent(value))

    assert same(got, value), got
    assert repr(got) == repr(value) or isinstance(value, datetime | Incomparable)


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.number


class Hiding(BaseModel):
    number: int
    password: str = Field(default="", exclude=True)


class Masking(BaseModel):
    password: SecretStr


class Renamed(BaseModel):
    number: int = Field(default=0, serialization_alias="n", validation_alias=AliasChoices("number"))


class Rounding(BaseModel):
    total: float

    @field_serializer("total")
    def _total(self, total: float) -> float:
        return round(total)


class Odd(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _number(cls, number: int) -> int:
        raise LookupError(number)


class OddSerializer(BaseModel):
    number: int

    @field_serializer("number")
    def _number(self, number: int) -> int:
        raise LookupError(number)


class Text(str): ...


class Numbers(list[int]): ...


@dataclass
class Parcel:
    order: Order


def itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def seen() -> Remembering:
    made = Remembering(number=1)
    made._seen = 2
    return made


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            SecretStr("hush"),
            "is pydantic.types.SecretStr, .* body: pydantic.types.SecretStr would come back",
        ),
        (SecretBytes(b"hush"), "JSON does not hold all"),
        (Masking(password=SecretStr("hush")), "password: pydantic.types.SecretStr would come back as another value"),
        ([Order(1), {"deep": Masking(password=SecretStr("hush"))}], r": 1\.deep\.password: pydantic"),
        (math.nan, "body: nan is not a number in JSON"),
        ({"a": [-math.inf]}, r"a\.0: -inf is not a number in JSON"),
        (Weight(math.inf), "grams: Input should be a valid number"),
        (Weight(2**53 + 1), "grams: int would come back as float"),
        ([b"\xff"], "PydanticSerializationError"),
        (["\ud800"], "surrogates not allowed"),
        (10**5000, "cannot hold: ValueError"),
        (Forbidding(number=1), "double: Extra inputs are not permitted"),
        (Hiding(number=1, password="hush"), "password: str would come back as another value"),
        (Renamed(number=1), "number: int would come back as another value"),
        (Rounding(total=1.4), "total: float would come back as another value"),
        (seen(), "_seen: int would come back as another value"),
        (Parcel(Express(1)), "order: tests.unit.test_bodies.Express would come back as tests.unit.test_bodies.Order"),
        (Holder(NEW_YEAR), "value: datetime.datetime would come back as str"),
        (Holder((1, 2)), "value: tuple would come back as list"),
        (Box(content=date(2020, 1, 1)), "content: datetime.date would come back as str"),
        (Order("17"), "number: str would come back as int"),  # type: ignore[arg-type]
        (Point(True), "x: Input|x: bool would come back as int|0: bool would come back as int"),
        (OrderedDict(a=date(2020, 1, 1)), "a: datetime.date would come back as str"),
        (defaultdict(list, a=[1]), "PydanticSchemaGenerationError"),
        ([NEW_YEAR.replace(fold=1)], r"0\.fold: int would come back as another value"),
        (time(1, tzinfo=ZoneInfo("Europe/Berlin")), "zone: bool would come back as another value"),
        (datetime(1880, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), "offset: datetime.timedelta would come back"),
        (Text("x"), "is tests.unit.test_bodies.Text"),
        (Numbers([1]), "is tests.unit.test_bodies.Numbers"),
        (bytearray(b"x"), r"is a bytearray, which would come back as bytes; give bytes\(...\)"),
        (memoryview(b"x"), "is a memoryview"),
        ({1: "a", "1": "b"}, "body: has keys of several types, int, str"),
        ({"a": {(1, 2): 3}}, "Input should be a valid"),
        ({None: 1}, "Input should be"),
        ((each for each in "ab"), "is generator"),
        (itself(), "Circular reference"),
        (object(), "is object, which JSON cannot hold"),
        (Order, "is type"),
        (Odd.model_construct(number=1), "cannot hold: LookupError: 1"),
        (OddSerializer(number=1), "LookupError"),
        (received(b"x", None), "is a ReceivedMessage; give its body"),
        (Message("orders", b"x"), "is a Message; give its body"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_value_that_would_come_back_differently_is_refused(value: object, reason: str) -> None:
    with pytest.raises(BodyInvalid, match=reason) as refused:
        encode(value)

    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (Any, NEW_YEAR, "datetime.datetime was sent, and str would come; annotate the parameter"),
        (object, Order(1), "tests.unit.test_bodies.Order was sent, and dict, bool, int would come"),
        (Any, (1, 2), "tuple was sent, and list"),
        (tuple[Any, ...], ((1,),), "tuple was sent"),
        (Any, Status.PAID, "Status was sent, and str would come"),
        (dict, {"a": date(2020, 1, 1)}, "datetime.date was sent"),
        (dict[str, Any], {"a": (1,)}, "tuple was sent"),
        (dict[str, Any], {1: 2}, "int was sent"),
        (dict[Any, Any], {1: 2}, "int was sent"),
        (list, [Order(1)], "Order was sent"),
        (list[Any], [[{1}]], "set was sent"),
        (Row, {"at": NEW_YEAR, "of": NEW_YEAR}, "datetime.datetime was sent"),
        (JsonValue, {"a": uuid.UUID(int=4)}, "uuid.UUID was sent"),
        (str, Status.PAID, "Status was sent, and str would come"),
        (int, Level.LOW, "Level was sent, and int would come"),
        (date, NEW_YEAR, "datetime.datetime was sent, and datetime.date would come"),
        (Order, Express(1), "Express was sent, and tests.unit.test_bodies.Order would come"),
        (list[Order], [Express(1)], "Express was sent"),
        (BaseModel, Cash(), "Cash was sent, and pydantic.main.BaseModel would come"),
        (Sequence[int], (1, 2), "tuple was sent, and list, int would come"),
        (Iterable[int], [1], "list was sent"),
        (list[datetime | str], [NEW_YEAR, "x", "2020-01-01T00:00:00"], "datetime.datetime was sent|str"),
        (Swap, {"a": date(2020, 1, 1), "b": "2020-01-01"}, "datetime.date was sent"),
        (list[str | Status], [Status.PAID], "Status was sent"),
        (list[Order | Payment], [Payment(1)], "Payment was sent"),
        (tuple[int, int], Point(1, 2), "Point was sent, and tuple, int would come"),
    ],
)
def test_a_value_whose_type_the_annotation_does_not_keep_is_refused(
    annotation: Any, value: object, reason: str
) -> None:
    with pytest.raises(BodyUnreadable, match=reason):
        read(annotation, sent(value))


@pytest.mark.parametrize(
    ("annotation", "value", "got"),
    [
        (dict[str, int], Order(1), {"number": 1, "paid": 0}),
        (dict[str, Any], Order(1), {"number": 1, "paid": False}),
        (dict, Cash(), {"kind": "cash"}),
        (Order, {"number": 1}, Order(1)),
        (Order, '{"number": "1"}', Order(1)),
        (Order, b'{"number": 1}', Order(1)),
        (Payment, Order(1), Payment(1)),
        (list[Payment], [Order(1)], [Payment(1)]),
        (str, Order(1), '{"number":1,"paid":false}'),
        (bytes, {"a": 1}, b'{"a":1}'),
        (bytes, "\u00e4", b"\xc3\xa4"),
        (str, b"x", "x"),
        (str, 17, "17"),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[str, str], {"a": NEW_YEAR}, {"a": "2020-01-01T00:00:00"}),
        (dict[str, datetime], {"a": "2020-01-01T00:00"}, {"a": NEW_YEAR}),
        (tuple[int, ...], [1], (1,)),
        (Status, '"paid"', Status.PAID),
        (Card | Cash, {"kind": "cash"}, Cash()),
        (Annotated[datetime, AfterValidator(datetime.date)], NEW_YEAR, date(2020, 1, 1)),
        (Annotated[str, StringConstraints(strip_whitespace=True)], " x ", "x"),
    ],
)
def test_an_annotation_may_ask_for_another_type_than_the_one_sent(annotation: Any, value: object, got: object) -> None:
    assert same(read(annotation, sent(value)), got)


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (Order, {"number": "1"}, "number: Input should be a valid integer"),
        (int, True, "Input should be a valid integer"),
        (list[int], [True], "0: Input should be a valid integer"),
        (int, 1.0, "Input should be a valid integer"),
        (Literal["a"], "b", "Input should be 'a'"),
        (Annotated[bytes, Field(max_length=1)], b"ab", "at most 1 byte"),
        (Status, Cash(), "Input should be 'paid' or 'null'"),
    ],
)
def test_nothing_is_guessed(annotation: Any, value: object, reason: str) -> None:
    with pytest.raises(BodyUnreadable, match=reason):
        read(annotation, sent(value))


@pytest.mark.parametrize(
    ("annotation", "body", "value"),
    [
        (bytes, b"17", b"17"),
        (bytes | str | int, b"17", b"17"),
        (bytes | None, b"null", b"null"),
        (str, b"17", "17"),
        (str | int, b"17", "17"),
        (str | None, b"null", "null"),
        (Name, b"x", "x"),
        (Literal["a", "b"], b"a", "a"),
        (Annotated[str, "as sent"], b"x", "x"),
        (int, b"17", 17),
        (Any, b"17", 17),
        (object, b"null", None),
        (Status, b'"paid"', Status.PAID),
        (Order, b'{"number": "17", "paid": 1}', Order(17, True)),
        (Order | None, b"null", None),
        (str | uuid.UUID, b"x", "x"),
    ],
)
def test_a_body_of_other_senders_is_read_by_the_annotation(annotation: Any, body: bytes, value: object) -> None:
    assert same(read(annotation, received(body, None)), value)


@pytest.mark.parametrize(
    ("mark", "annotation", "value"),
    [("bytes", Any, b"17"), ("text", str | int, "17"), ("json", str | int, 17), ("json", str | None, 17)],
)
def test_other_senders_may_say_the_form_too(mark: str, annotation: Any, value: object) -> None:
    if value == 17 and annotation == str | None:
        with pytest.raises(BodyUnreadable):
            read(annotation, received(b"17", mark))
    else:
        assert same(read(annotation, received(b"17", mark)), value)


def test_a_form_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BodyUnreadable, match="its property MQDB_BODY is 'avro'; it has to begin with bytes"):
        read(str, received(b"17", "avro"))


def test_marks_name_types_with_their_bases() -> None:
    marks = [encode(value).mark for value in (b"x", "x", {"a": [1]}, Express(1), {"a": date(2020, 1, 1), "b": {1: 2}})]

    assert marks == [
        *("bytes", "text", "json"),
        "json;tests.unit.test_bodies.Express/tests.unit.test_bodies.Order",
        f"json;dict;datetime.date;dict;int;key:int;{marks[-1].rpartition(';')[2]}",
    ]
    row = {"of": {"a": 1}, "at": NEW_YEAR}
    assert read(Row, sent(row)) == row


def test_an_int_may_stand_in_a_field_that_is_a_float() -> None:
    assert read(Weight, sent(Weight(17))) == Weight(17.0)


def test_code_of_the_user_that_fails_is_the_failure() -> None:
    def fail(value: object) -> NoReturn:
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        read(Annotated[str, AfterValidator(fail)], sent("x"))
    with pytest.raises(LookupError, match="4"):
        read(Odd, received(b'{"number": 4}', None))


def test_bodies_are_the_json_that_everybody_reads() -> None:
    assert encode(Order(17)).content == b'{"number":17,"paid":false}'
    assert encode(Cash()).content == b'{"kind":"cash"}'
    assert encode(Status.PAID).content == b'"paid"'
    assert encode({"at": [1, None]}).content == b'{"at":[1,null]}'
    assert (encode(b"raw").content, encode("text").content) == (b"raw", "text")


def test_fields_that_do_not_count_in_a_comparison_do_not_here() -> None:
    @dataclass
    class Cached:
        number: int
        cache: object = field(default=None, compare=False)

    assert encode(Cached(1, {1: 2})).content == b'{"number":1,"cache":{"1":2}}'
