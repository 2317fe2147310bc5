"""Assets: the files that browsers load besides pages. All of these files are in this package.

A third-party file is unchanged, so that its hash can be compared with that of the published file.
"""

from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).parent / "static"


class Vendored(NamedTuple):
    """A third-party file in `static`."""

    file: str
    project: str
    version: str
    licence: str
    licence_file: str
    source: str
    """The package in the npm registry, and the path of the file in the package."""
    sha256: str


VENDORED: Final = (
    Vendored(
        file="htmx-2.0.11.min.js",
        project="https://htmx.org",
        version="2.0.11",
        licence="0BSD",
        licence_file="htmx-LICENSE.txt",
        source="htmx.org@2.0.11/dist/htmx.min.js",
        sha256="d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    ),
    Vendored(
        file="pico-2.1.1.min.css",
        project="https://picocss.com",
        version="2.1.1",
        licence="MIT",
        licence_file="pico-LICENSE.txt",
        source="@picocss/pico@2.1.1/css/pico.min.css",
        sha256="fbc9a63fc9fc9f72d12fd7fc9806e11fa9f77ae4f9cad146b27003a1119ba3db",
    ),
)
