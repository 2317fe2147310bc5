"""mqdb as a zip, for `spark-submit --py-files`, which does not accept wheels.

The zip contains only mqdb's own modules. The nodes need the libraries of `mqdb[spark]`, some of which have binary parts
that cannot be imported from a zip.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

#: The packages that the data source imports.
_NAMES: Final = ("mqdb", "mqdb_client", "pyspark_mqdb")


def pack(path: Path) -> int:
    """Write the zip, which is reproducible; returns the number of files. Raises OSError."""
    files = [file for name in _NAMES for file in _files(name)]
    with ZipFile(path, "w", ZIP_DEFLATED) as packed:
        for file, name in files:
            packed.writestr(ZipInfo(name), file.read_bytes(), ZIP_DEFLATED)
    return len(files)


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """The files of a module or a package, and their names in the zip."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        yield origin, origin.name
        return
    for file in sorted(origin.parent.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            yield file, file.relative_to(origin.parent.parent).as_posix()
