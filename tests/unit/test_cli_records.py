"""The messages that `mqdb send` builds from text, JSON lines and CSV."""

import json

import pytest

from mqdb.cli.records import (
    Fixed,
    InputFormat,
    InputInvalid,
    Outgoing,
    RecordColumns,
    from_csv,
    from_jsonl,
    from_text,
    parse_property,
    suffix_format,
)
from mqdb.errors import ParameterInvalid

ORDERS = Fixed("orders")
NO_NULLS: frozenset[str] = frozenset()
WHOLE = RecordColumns()


def csv_messages(
    *lines: str, columns: RecordColumns = WHOLE, fixed: Fixed = ORDERS, nulls: frozenset[str] = NO_NULLS
) -> list[Outgoing]:
    return list(from_csv([line.encode() for line in lines], fixed, columns, nulls, "orders.csv"))


def jsonl_messages(
    *lines: str, columns: RecordColumns = WHOLE, fixed: Fixed = ORDERS, nulls: frozenset[str] = NO_NULLS
) -> list[Outgoing]:
    return list(from_jsonl([line.encode() for line in lines], fixed, columns, nulls, "orders.jsonl"))


# -- text ---------------------------------------------------------------------------------------


def test_each_line_of_text_is_a_body_with_the_fixed_tag_keys_and_properties() -> None:
    fixed = Fixed("orders", "new", ("k1", "k2"), {"origin": "shop"}, "customer-7")

    first, second = from_text([b"one", b"", b"\xfftwo"], fixed)

    assert (first.message.body, first.line) == (b"one", 1)
    assert (second.message.body, second.line) == (b"\xfftwo", 3)
    assert (first.message.topic, first.message.tag, first.message.keys) == ("orders", "new", ("k1", "k2"))
    assert first.message.properties == {"origin": "shop"}
    assert first.sharding_key == "customer-7"


def test_a_property_is_a_name_and_a_value() -> None:
    assert parse_property("origin=shop=1") == ("origin", "shop=1")
    with pytest.raises(ParameterInvalid, match="property = 'origin': must be written NAME=VALUE"):
        parse_property("origin")


def test_the_name_of_a_file_tells_its_format() -> None:
    assert suffix_format("a/Orders.CSV") is InputFormat.CSV
    assert suffix_format("orders.jsonl") is suffix_format("orders.ndjson") is InputFormat.JSONL
    assert suffix_format("orders.log") is suffix_format("csv") is InputFormat.TEXT


# -- CSV ----------------------------------------------------------------------------------------


def test_a_csv_record_becomes_json_in_the_order_of_the_header() -> None:
    (sent,) = csv_messages("carrier,flight,city", "UA,1545,Zürich")

    assert sent.message.body.decode() == '{"carrier": "UA", "flight": "1545", "city": "Zürich"}'
    assert (sent.message.tag, sent.message.keys, sent.message.properties) == (None, (), {})


def test_columns_become_tag_keys_properties_sharding_key_and_body() -> None:
    columns = RecordColumns("carrier", ("flight", "tailnum"), ("origin",), "tailnum", "note")

    (sent,) = csv_messages("carrier,flight,tailnum,origin,note", 'UA,1545,N14228,EWR,"late, ""very"""', columns=columns)

    assert sent.message.body == b'late, "very"'
    assert sent.message.tag == "UA"
    assert sent.message.keys == ("1545", "N14228")
    assert sent.message.properties == {"origin": "EWR"}
    assert sent.sharding_key == "N14228"


def test_a_missing_value_leaves_out_what_it_would_have_become() -> None:
    columns = RecordColumns("carrier", ("tailnum",), ("origin", "delay"), "tailnum")

    (sent,) = csv_messages("carrier,tailnum,origin,delay", "UA,NA,,NA", columns=columns, nulls=frozenset({"NA"}))

    assert (sent.message.tag, sent.message.keys, sent.message.properties, sent.sharding_key) == ("UA", (), {}, None)
    assert json.loads(sent.message.body) == {"carrier": "UA", "tailnum": None, "origin": "", "delay": None}


def test_a_column_wins_over_what_is_fixed_and_a_missing_value_does_not() -> None:
    fixed = Fixed("orders", "other", ("always",), {"origin": "?", "source": "file"}, "nobody")
    columns = RecordColumns("carrier", ("tailnum",), ("origin",), "tailnum")

    full, empty = csv_messages("carrier,tailnum,origin", "UA,N1,EWR", ",,", columns=columns, fixed=fixed)

    assert (full.message.tag, full.message.keys, full.sharding_key) == ("UA", ("always", "N1"), "N1")
    assert full.message.properties == {"origin": "EWR", "source": "file"}
    assert (empty.message.tag, empty.message.keys, empty.sharding_key) == ("other", ("always",), "nobody")
    assert empty.message.properties == {"origin": "?", "source": "file"}


def test_a_field_may_go_over_several_lines_and_a_byte_order_mark_before_the_header() -> None:
    columns = RecordColumns(body="note")

    (sent,) = csv_messages("\ufeffnote,n", '"one', 'two",1', columns=columns)

    assert sent.message.body == b"one\ntwo"
    assert sent.line == 3


def test_an_empty_body_column_is_an_empty_body_which_the_check_of_the_message_refuses() -> None:
    (sent,) = csv_messages("n,note", "1,", columns=RecordColumns(body="note"))

    assert sent.message.body == b""


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["a,b", "1,2,3"], "orders.csv, line 2: has 3 fields, the header has 2"),
        (["a,b", "", '1,"2'], "orders.csv, line 3: is not CSV: unexpected end of data"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number(lines: list[str], sentence: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        csv_messages(*lines)

    assert str(caught.value) == sentence


def test_csv_that_is_not_utf8_is_refused_with_its_line() -> None:
    with pytest.raises(InputInvalid, match=r"line 2: is not UTF-8: .* at byte 1"):
        list(from_csv([b"a", b"1\xff"], ORDERS, WHOLE, NO_NULLS, "orders.csv"))


def test_a_column_that_the_header_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(ParameterInvalid, match="column = 'carier': the columns are carrier, flight"):
        csv_messages("carrier,flight", "UA,1545", columns=RecordColumns(tag="carier"))


# -- JSON lines -----------------------------------------------------------------------------------


def test_a_json_line_is_the_body_as_it_stands() -> None:
    (sent,) = jsonl_messages('{"b":1,  "a":"x"}', " ")

    assert sent.message.body == b'{"b":1,  "a":"x"}'


def test_json_fields_become_text_and_a_list_several_keys() -> None:
    columns = RecordColumns("kind", ("ids", "number"), ("flag", "absent", "nothing", "deep"), "number", "text")
    record = {
        "kind": "new",
        "ids": ["a", "b", None],
        "number": 7,
        "flag": True,
        "nothing": None,
        "deep": {"x": [1]},
        "text": "Grüezi",
    }

    (sent,) = jsonl_messages(json.dumps(record), columns=columns)

    assert (sent.message.tag, sent.message.keys, sent.sharding_key) == ("new", ("a", "b", "7"), "7")
    assert sent.message.properties == {"flag": "true", "deep": '{"x": [1]}'}
    assert sent.message.body.decode() == "Grüezi"


@pytest.mark.parametrize(
    ("line", "fault"),
    [("{", "is not JSON: Expecting property name"), ("[1]", "is not a JSON object but list"), ('"x"', "but str")],
)
def test_a_line_that_is_no_json_object_is_refused_with_its_number(line: str, fault: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        jsonl_messages("{}", "", line)

    assert str(caught.value).startswith("orders.jsonl, line 3: ")
    assert fault in str(caught.value)
