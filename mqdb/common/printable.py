"""Untrusted text made printable for people and programs: control characters never reach a terminal.

Message bodies, properties, names and errors may contain escape sequences, which can retitle a window, hide lines or
send input as if from the user. C1 characters (U+0080 to U+009F) start such sequences, as ESC does.
"""

import json
import re
from typing import Any, Final

#: All control characters except tab and line feed.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Control characters that JSON may contain unescaped.
_CONTROL_IN_JSON: Final = re.compile(r"[\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with each control character, except tab and line feed, replaced by its number."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def json_text(value: object, **options: Any) -> str:
    """JSON that stays readable in any script, and in which all control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
