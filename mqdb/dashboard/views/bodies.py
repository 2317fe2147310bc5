"""The bodies of messages: as text, or as hexadecimal numbers if a body is not text."""

from typing import Final, NamedTuple

from mqdb.common.compression import decompress
from mqdb.common.printable import printable
from mqdb.dashboard.views.json_text import JsonNode, json_tree
from mqdb.errors import CompressedBodyBroken, CompressionUnavailable

#: The limits for a body on a page.
_MOST_BYTES: Final = 64 * 1024
_MOST_HEX_BYTES: Final = 1_024
_HEX_LINE_BYTES: Final = 16


class ShownBody(NamedTuple):
    """A body in a form that people can read."""

    size: int
    """The number of bytes of the whole body."""
    text: str
    is_text: bool
    """Whether the body is UTF-8 without control characters; otherwise `text` has its bytes as hexadecimal numbers."""
    is_whole: bool
    fault: str | None
    """The reason if the body could not be decompressed; `text` then shows the stored bytes."""
    tree: JsonNode | None = None
    """The body as a tree, if it is a JSON object or array of a reasonable size."""


def plain_body(stored: bytes, sys_flag: int) -> tuple[bytes, str | None]:
    """The body as it was sent; or, if it cannot be decompressed, the stored body and the reason."""
    try:
        return decompress(stored, sys_flag), None
    except (CompressedBodyBroken, CompressionUnavailable) as error:
        return stored, str(error)


def editable_text(body: bytes) -> str | None:
    """The body as an editable text; None if it is not text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _is_plain(text) else None


def edited_body(original: bytes, text: str) -> bytes:
    """The body from an edited text field. Browsers end lines with CR LF; the new body has the line ends of the old."""
    return (text if b"\r\n" in original else text.replace("\r\n", "\n")).encode()


def show_body(stored: bytes, sys_flag: int = 0) -> ShownBody:
    """A body in the form that a page shows; only the beginning of a long body."""
    body, fault = plain_body(stored, sys_flag)
    head = body[:_MOST_BYTES]
    # The last character may be cut in two.
    text = editable_text(head) if len(head) == len(body) else _beginning(head)
    if text is not None and fault is None:
        is_whole = len(head) == len(body)
        return ShownBody(len(body), text, True, is_whole, None, json_tree(text) if is_whole else None)
    return ShownBody(len(body), _hex(body[:_MOST_HEX_BYTES]), False, len(body) <= _MOST_HEX_BYTES, fault)


def _beginning(head: bytes) -> str | None:
    return next((text for cut in range(4) if (text := editable_text(head[: len(head) - cut])) is not None), None)


def _is_plain(text: str) -> bool:
    lines = text.replace("\r\n", "\n")
    return printable(lines) == lines


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), _HEX_LINE_BYTES):
        line = body[start : start + _HEX_LINE_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        lines.append(f"{start:08x}  {line.hex(' '):<{_HEX_LINE_BYTES * 3 - 1}}  {text}")
    return "\n".join(lines)
