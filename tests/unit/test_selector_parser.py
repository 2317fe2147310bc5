"""The selector parser. Tests in tests/integration evaluate its results in PostgreSQL."""

import pytest

from mqdb.selector.parser import MAX_NESTING, parse
from mqdb.selector.syntax import (
    And,
    Between,
    BooleanLiteral,
    Compare,
    Comparison,
    Contains,
    DoubleLiteral,
    Equal,
    In,
    IntegerLiteral,
    IsNull,
    Negative,
    Node,
    Not,
    NullLiteral,
    Or,
    PropertyNode,
    Refusal,
    StringLiteral,
    TextTest,
    walk,
)
from tests.fixtures.variants import usually

a, b, c = PropertyNode("a"), PropertyNode("b"), PropertyNode("c")
one, two = IntegerLiteral(1), IntegerLiteral(2)


def refusal(text: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(text)
    return caught.value


# -- precedence ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND c", Or((a, And((b, c))))),
        ("a AND b OR c", Or((And((a, b)), c))),
        ("(a OR b) AND c", And((Or((a, b)), c))),
        ("a OR b OR c", Or((a, b, c))),
        ("a OR (b OR c)", Or((a, Or((b, c))))),
        ("a = b AND c", And((Equal(a, b), c))),
        ("a = b = c", Equal(Equal(a, b), c)),
        ("a = b > 1", Equal(a, Compare(b, Comparison.GREATER, one))),
        ("a <> b IS NOT NULL", IsNull(Equal(a, b, True), True)),
        ("a > 1 IS NULL", IsNull(Compare(a, Comparison.GREATER, one))),
        ("NOT a = 1", Equal(Not(a), one)),
        ("NOT (a = 1)", Not(Equal(a, one))),
        ("NOT NOT a", Not(Not(a))),
        ("NOT a IS NULL", IsNull(Not(a))),
        ("a BETWEEN 1 AND 2 AND b", And((Between(a, one, two), b))),
        ("a NOT BETWEEN -1 AND 2", Between(a, Negative(one), two, True)),
        ("a IN ('x') = TRUE", Equal(In(a, ("x",)), BooleanLiteral(True))),
        ("a NOT IN ('x', 'y')", In(a, ("x", "y"), True)),
        ("a CONTAINS 'x' CONTAINS 'y'", Contains(Contains(a, TextTest.CONTAINS, "x"), TextTest.CONTAINS, "y")),
        ("a NOT ENDSWITH 'x'", Contains(a, TextTest.ENDSWITH, "x", True)),
        ("a >= - -1", Compare(a, Comparison.GREATER_OR_EQUAL, Negative(Negative(one)))),
        ("((a)) = (+1)", Equal(a, one)),
        ("NULL", NullLiteral()),
    ],
)
def test_operators_bind_as_in_rocketmq(text: str, tree: Node) -> None:
    assert parse(text) == tree


# -- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("'x'", StringLiteral("x")),
        ("''", StringLiteral("")),
        ("''''", StringLiteral("'")),
        ("'it''s'", StringLiteral("it's")),
        ("'\\n --/*'", StringLiteral("\\n --/*")),
        ("0", IntegerLiteral(0)),
        ("12l", IntegerLiteral(12)),
        ("9223372036854775807", IntegerLiteral(2**63 - 1)),
        ("5.", DoubleLiteral(5.0)),
        (".5", DoubleLiteral(0.5)),
        ("05.5", DoubleLiteral(5.5)),
        ("1.5E+2", DoubleLiteral(150.0)),
        ("2e1", DoubleLiteral(20.0)),
        ("4.9E-324", DoubleLiteral(5e-324)),
        ("TrUe", BooleanLiteral(True)),
        ("$_9", PropertyNode("$_9")),
        ("Like", PropertyNode("Like")),
    ],
)
def test_literals_and_names(text: str, literal: Node) -> None:
    assert parse(f"a = {text}") == Equal(a, literal)


@pytest.mark.parametrize(
    "text",
    [
        "a=1",
        "\t\r\n\f a \t=\r\n 1 \f",
        "a/**/=/* ' */1",
        "a -- it's so\n = 1",
        "a = -- 5\r 1",
        "a = 1 -- the end\r\n",
        "a = 1 -- the end",
        "a = 1 -- the end /* of it */ --",
        "a = 1 /* -- */ --",
    ],
)
def test_blanks_and_comments_mean_nothing(text: str) -> None:
    assert parse(text) == Equal(a, one)


@pytest.mark.parametrize(
    ("text", "operand"),
    [("a = --1", Negative(Negative(one))), ("a = --1 /* -- */", Negative(Negative(one))), ("a = '--' ", None)],
)
def test_two_signs_without_a_line_end_are_no_comment(text: str, operand: Node | None) -> None:
    assert parse(text) == Equal(a, operand or StringLiteral("--"))


def test_a_node_knows_where_it_stands() -> None:
    text = "a = 1 /* ' */ AND (NOT b OR c BETWEEN 1.5 AND -2)"

    tree = parse(text)

    found = {type(node).__name__: text[node.position :].split()[0] for node in walk(tree)}
    assert found["Between"] == "c"
    assert found["Not"] == "NOT"
    assert found["DoubleLiteral"] == "1.5"
    assert found["Negative"] == "-2)"


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "no expression"),
        (" /* nothing */ ", 15, "no expression"),
        ("a =", 3, "ends too early"),
        ("(a = 1", 6, "ends too early"),
        ("a IN ('x'", 9, "ends too early"),
        ("= 1", 0, "'=' is not expected here"),
        ("a = 1 AND AND b", 10, "'AND' is not expected here"),
        ("a NOT 5", 6, "'5' is not expected here"),
        ("a IS TRUE", 5, "'TRUE' is not expected here"),
        ("a IN (1)", 6, "'1' is not expected here"),
        ("a CONTAINS b", 11, "'b' is not expected here"),
        ("a != 1", 2, "write <>"),
        ('a = "x"', 4, "single quotes"),
        ("a = 'x", 4, "not closed"),
        ("a = '''", 6, "not closed"),
        ("a = 1 /* x", 6, "not closed"),
        ("a = 1 && b", 6, "write AND"),
        ("a\x0b= 1", 1, "no symbol"),
        ("a\u3000= 1", 1, "no symbol"),
        ("\ufeffa = 1", 0, "no symbol"),
        ("caf\xe9 = 1", 3, "no symbol"),
        ("a.b = 1", 1, "no symbol"),
        ("a = --5\n", 8, "ends too early"),
        ("a = 9223372036854775808", 4, "at most 9223372036854775807"),
        ("a = -9223372036854775808", 5, "at most 9223372036854775807"),
        ("a = " + "9" * 5000, 4, "at most 9223372036854775807"),
        ("a > 0.0", 4, "may not be 0"),
        ("a > 1e-400", 4, "may not be 0"),
        ("a > 1e309", 4, "may not be inf"),
        ("a = 'x\0'", 6, r"U+0000"),
        ("a = 1 /* \ud800 */", 9, r"U+D800"),
    ],
)
def test_what_cannot_be_read_is_refused_where_it_stands(text: str, position: int, reason: str) -> None:
    refused = refusal(text)

    assert refused.position == position
    assert reason in refused.reason


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a = 1 b", 6),
        ("a = 1)", 5),
        ("a = 1 + 2", 6),
        ("a = 007", 5),
        ("a = 0x1F", 5),
        ("a = 0L", 5),
        ("a = 1_000", 5),
        ("a = 1..5", 6),
        ("a = 1, b = 2", 5),
        ("a-b = 'x'", 1),
        ("a LIKE 'x%'", 2),
        ("a = 'x\\'y'", 8),
        ("a = 1 - - the end", 6),
        ("a = 1 -- not\n the end", 14),
    ],
)
def test_text_that_rocketmq_would_ignore_is_refused_where_it_begins(text: str, position: int) -> None:
    refused = refusal(text)

    assert refused.position == position
    assert "RocketMQ would ignore it" in refused.reason
    assert "the end" in refused.expected


def test_what_may_stand_there_is_told() -> None:
    assert refusal("a = ").expected == (
        "a property name", "a text in single quotes", "a number", "(", "+", "-", "FALSE", "NOT", "NULL", "TRUE",
    )  # fmt: skip
    assert refusal("a IS 5").expected == ("NOT", "NULL")
    assert refusal("a IN ('x' 'y')").expected == (")", ",")


# -- depth and length ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"), [("(", ")"), ("NOT ", ""), ("-", ""), ("+", ""), ("", " = TRUE"), ("", " CONTAINS 'x'")]
)
def test_nesting_is_limited(before: str, after: str) -> None:
    def nested(levels: int) -> str:
        chain = levels + 1 if after.startswith(" ") else levels
        inner = "a" if before != "-" and before != "+" else "5"
        outer = " = 1" if inner == "5" else ""
        return before * levels + inner + after * chain + outer

    parse(nested(MAX_NESTING))
    refused = refusal(nested(MAX_NESTING + 1))

    assert str(MAX_NESTING) in refused.reason


DEEP = ["(" * 100_000, "NOT " * 100_000, "a = " + "-" * 100_000, "a IN (" * 50_000]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", usually(DEEP[2], of=DEEP))
def test_deeper_nesting_ends_soon(text: str) -> None:
    refusal(text + "a = 1")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("operator", ["AND", "OR"])
def test_a_chain_is_one_node_however_long(operator: str) -> None:
    tree = parse(f" {operator} ".join(["a"] * 10_000))

    assert isinstance(tree, And if operator == "AND" else Or)
    assert tree.terms == (a,) * 10_000


@pytest.mark.timeout(20)
def test_many_signs_that_might_begin_a_comment_are_read_in_no_time() -> None:
    text = " OR ".join(["a = --1"] * 20_000)

    assert isinstance(parse(text), Or)
