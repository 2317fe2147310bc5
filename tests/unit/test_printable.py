"""Control characters in user texts are printed as numbers, and escaped in JSON."""

import json
import random

from mqdb.common.printable import json_text, printable
from tests.fixtures.fuzz import fuzz_cases, fuzz_random


def test_tab_and_line_feed_may_be_printed() -> None:
    assert printable("a\tb\nc\rd\x7f") == "a\tb\nc\\x0dd\\x7f"


def test_json_is_readable_in_any_script_and_holds_no_control_character() -> None:
    assert json_text({"é": "\x1b\x7f\x85\x9b価"}) == r'{"é": "\u001b\u007f\u0085\u009b価"}'


def test_no_text_brings_a_control_character_and_json_stays_what_it_was() -> None:
    chance = fuzz_random()
    for _ in range(fuzz_cases()):
        text = any_text(chance)

        assert not set(printable(text)) & CONTROL, ascii(text)
        assert not set(json_text([text])) & (CONTROL | set("\t\n")), ascii(text)
        assert json.loads(json_text([text])) == [text]


CONTROL = {chr(number) for number in (*range(0x20), *range(0x7F, 0xA0))} - set("\t\n")


def any_text(chance: random.Random) -> str:
    """A text in which about every other character is a control character."""
    return "".join(chr(chance.choice((chance.randrange(0xA0), chance.randrange(0xD800)))) for _ in range(20))
