"""SQL as a single element, however deep its nesting.

SQLAlchemy compiles an element by a recursive call for its inner elements, which Python stops after about a hundred
levels. Therefore only comparisons of two values are separate elements; the combinations of conditions are text between
them.
"""

from typing import Any

from sqlalchemy import Boolean, ColumnElement
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import visitors
from sqlalchemy.sql.compiler import SQLCompiler

from mqdb.selector.verdict import Sql


def flat(sql: Sql) -> ColumnElement[bool]:
    """A condition as a single element."""
    texts = [""]
    elements: list[ColumnElement[Any]] = []
    waiting = [sql]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            texts[-1] += part
        elif isinstance(part, tuple):
            waiting.extend(reversed(part))
        else:
            elements.append(part)
            texts.append("")
    return elements[0] if texts == ["", ""] else _Flat(texts, elements)


class _Flat(ColumnElement[bool]):
    """Elements, with the texts before, between and after them."""

    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy declares it
        ("texts", visitors.InternalTraversal.dp_string_list),
        ("elements", visitors.InternalTraversal.dp_clauseelement_list),
    ]

    def __init__(self, texts: list[str], elements: list[ColumnElement[Any]]) -> None:
        self.type = Boolean()
        self.texts = texts
        self.elements = elements

    @property
    def _from_objects(self) -> list[Any]:
        return [table for element in self.elements for table in element._from_objects]


@compiles(_Flat)
def _compile(flat: _Flat, compiler: SQLCompiler, **options: Any) -> str:
    parts = [flat.texts[0]]
    for element, text in zip(flat.elements, flat.texts[1:], strict=True):
        parts += (compiler.process(element, **options), text)
    return "".join(parts)
