"""Templates of pages, and the formatting of values in them. Each value is escaped, and an unknown name is an error."""

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mqdb.common.duration import duration_text
from mqdb.common.printable import printable

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

#: Longest text in a list.
_MOST_CHARACTERS: Final = 120


def path(*parts: object, **query: object) -> str:
    """An absolute path. Each part is one segment, whatever it contains; query fields without a value are omitted."""
    given = {name: str(value) for name, value in query.items() if value is not None and value is not False}
    return (
        "/"
        + "/".join(quote(str(part), safe="") for part in parts)
        + (f"?{urlencode(given, safe=',')}" if given else "")
    )


def time(moment: datetime | None) -> Markup:
    """A point in time in UTC. A script converts it to the reader's time zone; the exact value is in the title."""
    if moment is None:
        return Markup("")
    exact = moment.astimezone(UTC)
    shown = exact.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(
        exact.isoformat(), exact.isoformat(sep=" ", timespec="microseconds").removesuffix("+00:00"), shown
    )


def number(value: float | None) -> str:
    """A number with thousands separators."""
    return "" if value is None else f"{value:,}"


def age(seconds: float | None) -> str:
    """A duration in its largest unit, for people."""
    if seconds is None:
        return ""
    for unit, size in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def size(count: float | None) -> str:
    """Bytes in their largest unit, for people."""
    if count is None:
        return ""
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= one:
            return f"{count / one:,.1f} {unit}"
    return f"{count:,} B"


def line(text: object) -> str:
    """An untrusted text, shortened to one line that is not too long."""
    shown = " ".join(printable("" if text is None else str(text)).split())
    return shown if len(shown) <= _MOST_CHARACTERS else shown[: _MOST_CHARACTERS - 1] + "…"


def environment(package: str) -> Environment:
    """The templates of a package, and the frame of charts (`plot.html`)."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("mqdb.drawing")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        time=time, number=number, age=age, size=size, line=line, printable=printable, duration=duration_text
    )
    made.globals.update(path=path)
    return made
