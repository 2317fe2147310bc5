"""Untrusted texts, printable for people and programs: their control characters never reach a terminal.

Message bodies, properties, names and errors may hold escape sequences, which retitle a window, hide lines or answer
in the place of the user. C1 characters (U+0080 to U+009F) begin them as well as ESC does.
"""

import json
import re
from typing import Any, Final

#: All control characters but tab and line feed.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Those that JSON may hold as they are.
_CONTROL_IN_JSON: Final = re.compile(r"[\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with each control character but tab and line feed as its number."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def json_text(value: object, **options: Any) -> str:
    """JSON, readable in any script, with the control characters escaped that JSON does not escape itself."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
