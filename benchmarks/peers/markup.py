"""HTML and SVG as text that is escaped exactly once: plain text becomes markup here, and nowhere else."""

import re
from html import escape
from typing import Final

#: What neither HTML nor XML may hold, not even escaped.
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A value as a text of a page; U+FFFD for each character that none may hold."""
    return Markup(escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def join(parts: "list[Markup] | tuple[Markup, ...]") -> Markup:
    """Parts one behind the other, each on a line of its own."""
    return Markup("\n".join(parts))


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """An element; all content that is not Markup is escaped.

    Attributes are written with `-` for `_`, `class_` is `class`; one that is None is left out. Without content it is
    closed by `/>`, which HTML takes for the void elements and inside SVG only.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not content:
        return Markup(f"<{name}{given}/>")
    inner = "".join(part if isinstance(part, Markup) else text(part) for part in content)
    return Markup(f"<{name}{given}>{inner}</{name}>")
