"""The difference of two bodies: line by line, and by value for JSON."""

from mqdb.dashboard.views.differences import difference


def signs(before: str, after: str) -> list[str]:
    return [f"{line.sign} {line.text}" for line in difference(before, after)]


def test_json_is_compared_value_by_value() -> None:
    assert signs('{"a": 1, "b": {"c": [1, 2]}}', '{"a":1,"b":{"c":[1,3]}}') == [
        "@ …",
        "      c: [",
        "        0: 1",
        "-       1: 2",
        "+       1: 3",
        "      ]",
        "    }",
    ]


def test_other_texts_are_compared_line_by_line() -> None:
    assert signs("one\ntwo\n", "one\n2\n") == ["@ …", "  one", "- two", "+ 2"]


def test_equal_bodies_have_no_difference() -> None:
    assert signs("same", "same") == []
    assert signs('{"a": 1}', '{ "a" : 1 }') == []
