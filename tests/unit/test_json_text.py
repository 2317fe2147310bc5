"""JSON bodies: the tree that a page shows, and a change of one value that leaves all other characters alone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.dashboard.views.json_text import JsonChange, JsonNode, json_tree
from mqdb.errors import ParameterInvalid

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def labels(node: JsonNode) -> list[tuple[str | None, str | None]]:
    return [(node.label, node.text), *(each for child in node.children for each in labels(child))]


def test_a_tree_keeps_the_order_repeated_names_and_every_digit() -> None:
    tree = json_tree('{"b": 1.10, "a": [true, 12345678901234567890123], "b": "ö"}')

    assert tree is not None
    assert labels(tree) == [
        (None, None),
        ("b", "1.10"),
        ("a", None),
        ("0", "true"),
        ("1", "12345678901234567890123"),
        ("b", '"ö"'),
    ]


@pytest.mark.parametrize(
    "text", ["12", "plain", "{", '{"a": NaN}', "[" * 3_000 + "]" * 3_000, "[" + "1," * 1_000 + "1]"]
)
def test_what_is_no_object_or_too_large_has_no_tree(text: str) -> None:
    assert json_tree(text) is None


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (
            'customer.country = "CZ"',
            '{"customer": {"country": null, "n": 1.0}}',
            '{"customer": {"country": "CZ", "n": 1.0}}',
        ),
        ("items[1].price = 10", '{"items":[{"price":1},{"price":"x"}]}', '{"items":[{"price":1},{"price":10}]}'),
        ('["odd key"] = [1, 2]', '{"odd key":0 }', '{"odd key":[1, 2] }'),
        ("a = 1", "{}", '{"a": 1}'),
        ("a = 1", '{"b": 2 }', '{"b": 2, "a": 1 }'),
        ("a = 3", '{"a": 1, "a": 2}', '{"a": 1, "a": 3}'),
        ("[0] = 3", "[1, 2]", "[3, 2]"),
        ("remove a", '{"a": 1, "b": 2}', '{"b": 2}'),
        ("remove b", '{"a": 1, "b": 2}', '{"a": 1}'),
        ("remove a", '{ "a": 1 }', "{  }"),
        ("remove [1]", "[1, 2, 3]", "[1, 3]"),
        ('note = "a = b"', '{"note": 1}', '{"note": "a = b"}'),
        ('["a = b"] = 2', '{"a = b": 1}', '{"a = b": 2}'),
        ("remove = 2", '{"remove": 1}', '{"remove": 2}'),
        ("remove remove", '{"remove": 1}', "{}"),
    ],
)
def test_a_change_touches_one_value(change: str, before: str, after: str) -> None:
    assert JsonChange.parse(change).apply(before) == after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "= 1",
        "a =",
        "a = x",
        "a..b = 1",
        "a[x] = 1",
        "a = NaN",
        "remove",
        "a b = 1",
        "remove a = 1",
        r'["\q"] = 1',
    ],
)
def test_a_change_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ParameterInvalid, match="change"):
        JsonChange.parse(text)


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ("a.b = 1", "{}"),
        ("a.b = 1", '{"a": 2}'),
        ("[2] = 1", "[0]"),
        ("remove a", "{}"),
        ("a = 1", "[]"),
        ("a = 1", "x"),
    ],
)
def test_a_value_that_is_not_there_is_said(change: str, body: str) -> None:
    with pytest.raises(ParameterInvalid):
        JsonChange.parse(change).apply(body)


def places(value: Any, path: str = "") -> list[str]:
    inner = (
        [(f"[{json.dumps(name)}]", each) for name, each in value.items()]
        if isinstance(value, dict)
        else [(f"[{index}]", each) for index, each in enumerate(value)]
        if isinstance(value, list)
        else []
    )
    return [found for step, each in inner for found in (path + step, *places(each, path + step))]


def at(value: Any, path: str) -> Any:
    for step in JsonChange.parse(f"{path} = 0").path:
        value = value[step]
    return value


@given(VALUES, st.data(), st.sampled_from([None, 1]))
def test_each_value_of_a_text_can_be_changed_and_all_others_stay(
    value: Any, data: st.DataObject, indent: int | None
) -> None:
    text, paths = json.dumps(value, indent=indent), places(value)
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))

    changed = json.loads(JsonChange.parse(f'{path} = "mark 7"').apply(text))

    assert at(changed, path) == "mark 7"
    for other in paths:
        if not other.startswith(path) and not path.startswith(other):
            assert at(changed, other) == at(value, other)
    gone = json.loads(JsonChange.parse(f"remove {path}").apply(text))
    assert len(places(gone)) == len(paths) - 1 - len(places(at(value, path)))
