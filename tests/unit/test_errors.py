"""The error classes: every error explains itself in one sentence, and survives pickling into another process."""

import pickle
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from mqdb import errors
from mqdb.errors import (
    BY_SQLSTATE,
    MqdbError,
    NameInvalid,
    ParameterInvalid,
    QueueNotFound,
    ResponseCode,
    SendGivenUp,
    TopicExists,
    TopicNotFound,
)


def all_errors(root: type[MqdbError] = MqdbError) -> list[type[MqdbError]]:
    # The command line has a few of its own, which are there when another test has imported it.
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(error for child in children for error in all_errors(child))]


def parameters(error: type[MqdbError]) -> dict[str, Any]:
    """Names and types of an error's values; empty for a base class without values."""
    hints = get_type_hints(error)
    return {name: hints[name] for name in error.fields}


def sample(name: str, hint: Any) -> object:
    samples: dict[Any, object] = {
        dict[str, tuple[str, str]]: {f"a {name}": ("TAG", "*")},
        dict[str, str]: {f"a {name}": f"for a {name}"},
        int: 100 + len(name),
        float: 2.5,
        Path: Path("/srv") / name,
        list[str]: [f"a {name}", f"b {name}"],
        tuple[str, ...]: (f"a {name}",),
    }
    return samples.get(hint, f"a {name}")


def made(error: type[MqdbError]) -> MqdbError:
    return error(*(sample(name, hint) for name, hint in parameters(error).items()))


with_data = [error for error in all_errors() if parameters(error)]


@pytest.mark.parametrize("error", all_errors())
def test_every_error_says_what_it_means(error: type[MqdbError]) -> None:
    assert "__doc__" in vars(error)
    assert error.__doc__


@pytest.mark.parametrize("error", all_errors())
def test_every_error_has_a_code_of_rocketmq(error: type[MqdbError]) -> None:
    assert error.code in ResponseCode
    assert error.code is not ResponseCode.SUCCESS


def test_an_error_takes_its_values_by_position_and_by_name() -> None:
    assert vars(SendGivenUp("orders", timeout_seconds=3.0)) == {
        "topic": "orders",
        "timeout_seconds": 3.0,
        "reason": "",
    }
    with pytest.raises(TypeError, match="missing a required argument"):
        QueueNotFound("orders", 9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        TopicNotFound("orders", queue=9)  # type: ignore[call-arg]


#: RAISE in the text of a function: SQLSTATE, and the keys of DETAIL.
RAISED = re.compile(r"RAISE EXCEPTION .*?USING\s+ERRCODE = '(\w+)'(.*?);", re.DOTALL)
TEXTS = sorted((Path(errors.__file__).parent / "sql").rglob("*.sql"))


@pytest.mark.parametrize("path", TEXTS, ids=[path.stem for path in TEXTS])
def test_functions_of_the_schema_raise_declared_errors_with_all_their_values(path: Path) -> None:
    text = path.read_text()
    raised = RAISED.findall(text)

    assert len(raised) == text.count("RAISE EXCEPTION")
    for sqlstate, rest in raised:
        error = BY_SQLSTATE[sqlstate]
        keys = re.findall(r"'(\w+)', ", rest.partition("jsonb_build_object(")[2])
        required = [name for name in error.fields if name in keys]
        assert required == list(error.fields), f"{error.__name__} needs {error.fields}"


def test_each_sqlstate_is_raised_by_a_function_and_is_one_of_mqdb() -> None:
    text = "".join(path.read_text() for path in TEXTS)

    assert all(re.fullmatch(r"MQ\d{3}", sqlstate) and f"'{sqlstate}'" in text for sqlstate in BY_SQLSTATE)


@pytest.mark.parametrize("error", with_data)
def test_every_error_pickles_with_data_and_sentence(error: type[MqdbError]) -> None:
    original = made(error)

    copy = pickle.loads(pickle.dumps(original))

    assert type(copy) is error
    assert vars(copy) == vars(original)
    assert str(copy) == str(original)


@pytest.mark.parametrize("error", with_data)
def test_every_argument_is_kept_as_an_attribute(error: type[MqdbError]) -> None:
    original = made(error)

    assert {name: getattr(original, name, None) for name in parameters(error)} == {
        name: sample(name, hint) for name, hint in parameters(error).items()
    }


@pytest.mark.parametrize("error", [error for error in with_data if error is not QueueNotFound])
def test_the_sentence_names_every_value(error: type[MqdbError]) -> None:
    sentence = str(made(error))

    for name, hint in parameters(error).items():
        value = sample(name, hint)
        assert all(str(part) in sentence for part in (value if isinstance(value, list | tuple | dict) else [value]))


def test_a_missing_queue_is_named_with_those_that_exist() -> None:
    assert str(QueueNotFound("orders", 9, 4)) == "topic 'orders' has queues 0 to 3, not 9"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path = [MqdbError.__name__]
    for indent, name in re.findall(r"^    ((?:│   |    )*)[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE):
        path[len(indent) // 4 + 1 :] = [name]
        drawn[name] = path[-2]

    real = {error.__name__: error.__mro__[1].__name__ for error in all_errors()[1:]}

    assert drawn == real


def test_a_huge_value_does_not_flood_the_sentence_but_stays_in_the_error() -> None:
    error = NameInvalid("topic", "x" * 1_000_000, "has 1,000,000 characters")

    assert len(str(error)) < 300
    assert len(error.name) == 1_000_000


@pytest.mark.parametrize("error", with_data)
def test_no_value_makes_a_sentence_longer_than_a_screen(error: type[MqdbError]) -> None:
    """No value makes an error sentence longer than a screen.

    This includes an integer of more than 4,300 digits, which Python does not print.
    """
    huge: dict[Any, object] = {
        str: "x\n" * 50_000, int: 10**5_000, object: "y" * 100_000, list[str]: ["z" * 100_000] * 100,
        tuple[str, ...]: ("z" * 100_000,) * 100, Path: Path("/srv") / ("p" * 200),
        dict[str, tuple[str, str]]: {"t" * 100_000: ("TAG", "e" * 100_000)},
        dict[str, str]: {"n" * 100_000: "r" * 100_000},
    }  # fmt: skip
    values = {name: huge.get(hint, 1.5) for name, hint in parameters(error).items()}
    values |= {"position": 7} if "position" in values else {}

    sentence = str(error(**values))

    assert len(sentence) <= 4_000
    assert {name: getattr(error(**values), name) for name in values} == values


def test_a_value_of_legal_length_is_shown_whole() -> None:
    assert "n" * 127 in str(NameInvalid("topic", "n" * 127, "is taken"))


def test_a_line_break_in_a_value_does_not_break_the_line() -> None:
    assert "\n" not in str(ParameterInvalid("limit", "1\n2", "must be a number"))


@pytest.mark.parametrize("error", [TopicNotFound("a|b"), TopicExists("a|b")])
def test_a_command_in_a_sentence_can_be_pasted_into_a_shell(error: MqdbError) -> None:
    assert str(error).endswith(" 'a|b'")


@pytest.mark.parametrize("name", [None, 5, ["orders"]])
def test_a_name_that_is_no_text_is_told_too(name: Any) -> None:
    assert f"topic {name!r} does not exist" in str(TopicNotFound(name))
