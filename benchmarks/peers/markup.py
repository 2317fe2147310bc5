"""HTML and SVG as text that is escaped exactly once: plain text becomes markup only in this module."""

import re
from html import escape
from typing import Final

#: What neither HTML nor XML may hold, not even escaped.
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A value as the text of a page; characters that pages may not contain are replaced by U+FFFD."""
    return Markup(escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def join(parts: "list[Markup] | tuple[Markup, ...]") -> Markup:
    """Parts one after another, each on a separate line."""
    return Markup("\n".join(parts))


def element(name: str, /, *content: object, **attributes: object) -> Markup:
    """An element; any content that is not Markup is escaped.

    In attribute names `_` becomes `-`, and `class_` becomes `class`; an attribute with the value None is left out. An
    element without content ends with `/>`, which HTML accepts only for void elements and inside SVG.
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
