"""Every function of the schema returns a result for any arguments, or says in a sentence what is wrong with them."""

import itertools
import random

import psycopg
import pytest

from mqdb.selector.tags import java_string_hash
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.log import Connection, append, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import Database

#: What each type of an argument may be, as SQL.
_VALUES = {
    "integer": ["0", "-1", "1", "2147483647", "-2147483648"],
    "bigint": ["0", "-1", "1", "9223372036854775807", "-9223372036854775808"],
    "text": [
        "''",
        "' '",
        "'orders'",
        "'%RETRY%nobody'",
        "'SCHEDULE_TOPIC_XXXX'",
        "repeat('x', 40000)",
        "'1e400'",
        "'\u0663'",
    ],
    # The last one is the usual one: an oversized body would be refused before the other arguments are looked at.
    "bytea": ["''", "'\\x00'", "repeat('x', 4194305)::bytea", "'x'"],
    "json": ["'{}'", "' null '", "'\"x\"'", "'{\"a\": 1}'"],
    "jsonb": [
        "'{}'",
        "'[]'",
        "'1'",
        "'null'",
        "'{\"a\": 1}'",
        '\'{"a": ""}\'',
        '\'{"TAGS": "a"}\'',
        '\'{"REAL_QID": "x"}\'',
    ],
    "boolean": ["true", "false"],
    "timestamp with time zone": [
        "'infinity'",
        "'-infinity'",
        "'294276-12-31'",
        "'4713-01-01 BC'",
        "'2100-01-01'",
        "clock_timestamp()",
    ],
    "uuid": ["'00000000-0000-0000-0000-000000000000'"],
    "uuid[]": ["'{}'", "'{NULL}'", "'{00000000-0000-0000-0000-000000000000}'"],
    "integer[]": ["'{}'", "'{NULL}'", "'{1,1}'", "'{-1,2147483647}'"],
    "interval": ["'0'", "'-1 s'", "'178000000 years'", "'1 day'"],
    "interval[]": ["'{}'", "'{NULL}'", "'{-1 s}'", "'{178000000 years}'", "'{{1 s},{2 s}}'", "'{1 s,1 min}'"],
    "text[]": ["'{}'", "'{NULL}'", "'{orders,orders}'", "'{{a},{b}}'"],
    "bigint[]": ["'{}'", "'{NULL}'", "'{0}'", "'{1,1,2}'", "'{-1,9223372036854775807}'"],
}

#: Errors with a sentence: mqdb's own, and invalid_parameter_value.
_SENTENCES = ("MQ", "22023")

#: Parts of others, which only these call, with what they have found themselves.
_INNER = (
    *("begin_batch", "next_batch", "end_batch", "dispatch_records", "lane_batch", "open_lane"),
    *("leave_segment", "add_partitions", "java_decimal", "java_hexadecimal"),
    *("first_in_flight", "places_of", "receipt_handle", "take_out", "lock_batches"),
    *("messages_of", "count_popped", "begin_queues", "pop_new", "bury"),
)


@pytest.fixture
def session(log: Connection) -> Connection:
    create_topic(log, "orders", 2)
    append(log, 1, 3)
    dispatch_all(log)
    log.execute("SET statement_timeout = '20s'")
    return log


def functions(connection: Connection) -> list[tuple[str, list[str]]]:
    rows = connection.execute(
        """SELECT p.proname, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t)
           FROM pg_proc p WHERE p.pronamespace = 'mqdb'::regnamespace AND p.prorettype <> 'trigger'::regtype
             AND p.pronargs > 0 ORDER BY 1, 2"""
    )
    return [(name, types) for name, types in rows if name not in _INNER]


def refusal(connection: Connection, call: str) -> str | None:
    """The error that refuses a call, or None. The call is rolled back."""
    connection.execute("BEGIN")
    try:
        connection.execute(call.encode(), prepare=False).fetchall()
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    finally:
        connection.execute("ROLLBACK")
    return None


def calls(connection: Connection, random_source: random.Random, number: int) -> list[str]:
    """Calls of each function with one strange argument at a time, then with all arguments strange."""
    found = []
    for name, types in functions(connection):
        usual = [_VALUES[type_][-1] for type_ in types]
        for place, type_ in enumerate(types):
            for value in ("NULL", *_VALUES[type_]):
                given = [value if place == other else usual[other] for other in range(len(types))]
                found.append(_call(name, given, types))
    for name, types in itertools.islice(itertools.cycle(functions(connection)), number):
        given = [random_source.choice(["NULL", *_VALUES[type_]]) for type_ in types]
        found.append(_call(name, given, types))
    return found


def _call(name: str, values: list[str], types: list[str]) -> str:
    arguments = ", ".join(f"({value})::{type_}" for value, type_ in zip(values, types, strict=True))
    return f"SELECT mqdb.{name}({arguments})"


def test_every_function_answers_or_refuses_in_a_sentence(session: Connection) -> None:
    wrong = {
        call: found
        for call in calls(session, fuzz_random(), fuzz_cases())
        if (found := refusal(session, call)) is not None and not found.startswith(_SENTENCES)
    }

    assert not wrong, "\n".join(f"{call[:160]}: {found}" for call, found in wrong.items())


def test_the_hash_of_a_long_text_is_not_quadratic(session: Connection) -> None:
    """300,000 characters take 0.1 s; reading them one at a time with substr would take minutes."""
    session.execute("SET statement_timeout = '60s'")
    text = "a\u00e9\U0001f600" * 100_000

    assert scalar(session, "SELECT mqdb.java_hash(%s::text)", [text]) == java_string_hash(text)


def test_a_sharding_key_has_a_limit(session: Connection) -> None:
    session.execute("SELECT mqdb.send('orders', 'x', sharding_key => repeat('x', 32767))")
    with pytest.raises(psycopg.Error, match=r"sharding_key = x+: has 32768 bytes, the limit is 32767") as refused:
        session.execute("SELECT mqdb.send('orders', 'x', sharding_key => repeat('x', 32768))")

    assert refused.value.sqlstate == "MQ108"


def test_no_database_is_adopted_under_serializable(database: Database) -> None:
    session = database.connect()
    session.execute("SET default_transaction_isolation = serializable")

    with pytest.raises(psycopg.Error, match="READ COMMITTED") as refused:
        session.execute("SELECT mqdb.adopt()")

    assert refused.value.sqlstate == "MQ109"
