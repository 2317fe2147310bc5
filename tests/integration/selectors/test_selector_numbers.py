"""Strings as numbers: the database parses them like Java, and never raises an error.

The functions have a fast path for ordinary numbers, and a slow path for all other strings; the two are compared.
"""

import math
import random
import struct
from collections.abc import Iterable
from decimal import Decimal, localcontext

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Text, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY

from tests.fixtures.java_numbers import java_double, java_integer

LARGEST = str(2**1024 - 2**970)  # half way to what comes behind the largest double
SMALLEST = "0." + str(5**1075).zfill(1075)  # half way to the smallest

DOUBLES = [
    "", ".", "-", "+.5", "5.", "1e", "1e+", ".e5", "5.e3", "1e5f", "1.5D", "1ef", "1d5", "++1", "+-1", "1.5.5", "1,5",
    "NaN", "-NaN", "+NaN", "NaNf", "nan", "Infinity", "-Infinity", "+Infinity", "infinity", "inf", "1_0", "1 2",
    "0x1p4", "0x.8p1", "0x1.p1", "0x.p1", "0xp1", "0x1", "0x1.8", "0x1p", "-0x0p0", "0x1p4f", "0X1P+4D", "0b1p1",
    "0", "-0", "0.0", "-0.0", "-0e9", "00000000000000000000.5", "1e400", "-1e400", "1e-400", "-1e-400",
    "4.9e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "1.7976931348623157e308",
    "1.7976931348623159e308",
    LARGEST, str(int(LARGEST) - 1), f"{LARGEST}.{'0' * 900}1", SMALLEST, f"{SMALLEST}1", f"-{SMALLEST}",
    "9" * 400, "0." + "0" * 400 + "1", "1" + "0" * 400 + "e-400", "0." + "0" * 40_000 + "1", "1" * 40_000 + "e-40000",
    "1e99999999999999999999", "1e-99999999999999999999", "0e99999999999999999999", "1" * 101, "a" * 32_000,
    "0x1p-1074", "0x1p-1075", "0x1.0000001p-1075", "0x1.8p-1074", "0x2.8p-1074", "0x0.0000000000001p-1022",
    "0x1.fffffffffffffp1023", "0x1.fffffffffffff8p1023", "0x1.fffffffffffff7fffffffp1023", "0x1p1024",
    "0x1p99999999999999999999", "-0x1p-99999999999999999999", "0x0p99999999999999999999", "0x" + "f" * 300 + "p0",
    "0x." + "0" * 400 + "1p1600", "0x1.00000000000008p0", "0x1.00000000000018p0", "0x1.000000000000080000000001p0",
    " 5 ", "\t5\n", "\x015\x1f", "5\xa0", "\u30005", "\uff11\uff12", "\u0661\u0662", "5\x7f",
]  # fmt: skip

INTEGERS = [
    "", "+", "-", "--5", "+-5", "0", "-0", "+3", "007", " 5", "5 ", "5\n", "5L", "0x5", "1_0", "1.0", "1e1", "a",
    "999999999", "1000000000", "+2147483647", "2147483648", "-2147483648", "-2147483649",
    "999999999999999999", "1000000000000000000", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "0" * 3000 + "5", "9" * 3000, "x" * 32_000,
    "\uff11\uff12", "-\u0661\u0663", "\U0001d7cf\U0001d7d0", "\u00b2", "\u00bd", "\u2167",
    "\u0e50" * 3000 + "\u0e55", "\u06634\u096b",
]  # fmt: skip


def doubles(conn: Connection, texts: Iterable[str]) -> list[tuple[str, float | None, float | None]]:
    each = func.unnest(cast(list(texts), ARRAY(Text))).column_valued("each")
    return [
        tuple(row) for row in conn.execute(select(each, func.mqdb.java_double(each), func.mqdb.java_any_double(each)))
    ]


def same(one: float | None, other: float | None) -> bool:
    """Whether two numbers are equal, where NaN equals NaN, and -0.0 differs from 0.0."""
    return one is other if one is None or other is None else struct.pack("d", one) == struct.pack("d", other)


def known(number: float | None) -> float | None:
    return math.nan if number is not None and math.isnan(number) else number


def half_ways(random_: random.Random) -> Iterable[str]:
    """Doubles, the midpoints to their next neighbours, and numbers just beside these."""
    with localcontext() as context:
        context.prec = 2000
        for _ in range(300):
            bits = random_.getrandbits(63) >> random_.choice([0, 0, 0, 5, 12, 40])
            number, following = (struct.unpack("d", struct.pack("Q", each))[0] for each in (bits, bits + 1))
            if math.isfinite(following):
                half = (Decimal(number) + Decimal(following)) / 2
                yield from (repr(number), number.hex(), str(half), str(half.next_plus()), str(half.next_minus()))


@pytest.mark.parametrize("text", DOUBLES, ids=lambda text: f"{text[:20]!a}-{len(text)}")
def test_a_text_is_the_double_that_java_reads(conn: Connection, text: str) -> None:
    ((_, quick, thorough),) = doubles(conn, [text])

    assert same(known(quick), java_double(text))
    assert same(known(thorough), java_double(text))


def test_what_lies_between_two_doubles_is_rounded_as_java_does(conn: Connection) -> None:
    found = doubles(conn, half_ways(random.Random(5)))

    assert len(found) > 1000
    assert [row for row in found if not (same(row[1], java_double(row[0])) and same(row[2], java_double(row[0])))] == []


@pytest.mark.parametrize("text", INTEGERS, ids=lambda text: f"{text[:20]!a}-{len(text)}")
def test_a_text_is_the_integer_that_java_reads(conn: Connection, text: str) -> None:
    row = conn.execute(select(func.mqdb.java_int(text), func.mqdb.java_long(text))).one()

    assert tuple(row) == (java_integer(text, 32), java_integer(text, 64))


def test_digits_of_every_script_count(conn: Connection) -> None:
    characters = [chr(point) for point in range(1, 0x10000) if not 0xD800 <= point < 0xE000]
    each = func.unnest(cast(characters, ARRAY(Text))).column_valued("each")

    found = conn.execute(select(each, func.mqdb.java_int(each)).where(func.mqdb.java_int(each).is_not(None))).all()

    expected = [(each, number) for each in characters if (number := java_integer(each, 32)) is not None]
    assert len(expected) >= 370
    assert [tuple(row) for row in found] == expected


numerals = st.from_regex(
    r"[ \t]?[+-]?(?:[0-9]{0,25}\.?[0-9]{0,25}(?:[eE][+-]?[0-9]{1,4})?|0[xX][0-9a-fA-F]{0,20}\.?[0-9a-fA-F]{0,20}[pP]"
    r"[+-]?[0-9]{1,4})[fFdD]?[ ]?",
    fullmatch=True,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(numerals | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=40))
@example(["0x1.8p1", "0x.0p5"])
def test_any_text_is_the_number_that_java_reads(conn: Connection, texts: list[str]) -> None:
    for text, quick, thorough in doubles(conn, texts):
        assert same(known(quick), java_double(text)), text
        assert same(known(thorough), java_double(text)), text
