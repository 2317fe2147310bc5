"""RocketMQ user programs in other languages and with Spring Boot.

Each program sends, consumes, and makes one message fail once. Each has a folder here, is called with the address of a
server and an existing topic, and prints one line of JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from tests.fixtures.program_cache import ProgramMissing, cached, need
from tests.fixtures.remoting_kit import Outcome

_HERE: Final = Path(__file__).resolve().parent
#: The Python client has its C++ library inside.
_PYTHON_CLIENT: Final = "rocketmq==0.4.4"
_SECONDS: Final = 150


def run_client(name: str, server: str, topic: str) -> Outcome:
    """Run the program with this name in CLIENTS. Raises ProgramMissing."""
    command, environment = CLIENTS[name]()
    with TemporaryDirectory(prefix="mqdb-client-") as home:
        done = subprocess.run(
            [*command, server, topic],
            env={**os.environ, "HOME": home, **environment},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise ProgramMissing(f"{name} says nothing but this: {(done.stdout + done.stderr)[-2_000:]}")
    return Outcome(**json.loads(lines[-1]))


def _go() -> tuple[list[str], dict[str, str]]:
    folder = _HERE / "go"
    sources = [folder / "main.go", folder / "go.mod", folder / "go.sum"]
    made = cached("go", sources, ["go"], ["go", "build", "-o", "{}/kit", "."], cwd=folder)
    return [str(made / "kit")], {}


def _node() -> tuple[list[str], dict[str, str]]:
    need("node")
    sources = [_HERE / "node" / "package.json", _HERE / "node" / "package-lock.json"]
    copy = ["cp", *map(str, sources), "{}"]
    made = cached("node", sources, ["npm"], copy, ["npm", "ci", "--no-audit", "--no-fund", "--prefix", "{}"])
    return ["node", str(_HERE / "node" / "main.js")], {"NODE_PATH": str(made / "node_modules")}


def _spring() -> tuple[list[str], dict[str, str]]:
    need("java")
    pom, source = _HERE / "spring" / "pom.xml", _HERE / "spring" / "src" / "main" / "java" / "shop" / "Shop.java"
    maven = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies"]
    jars = cached("spring-jars", [pom], ["mvn", "javac"], [*maven, "-DoutputDirectory={}"])
    compiler = ["javac", "--release", "17", "-nowarn", "-cp", f"{jars}/*", "-d", "{}", str(source)]
    classes = cached("spring-classes", [pom, source], ["javac"], compiler)
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}{os.pathsep}{jars}/*", "shop.Shop"], {}


def python_with_client() -> Path:
    """The Python of an environment that has RocketMQ's client. Raises ProgramMissing."""
    pip = ["{}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", _PYTHON_CLIENT]
    made = cached(f"python-{_PYTHON_CLIENT}", [], [], [sys.executable, "-m", "venv", "{}"], pip)
    return made / "bin" / "python"


def _python() -> tuple[list[str], dict[str, str]]:
    return [str(python_with_client()), str(_HERE / "python" / "main.py")], {}


CLIENTS: Final[Mapping[str, Callable[[], tuple[list[str], dict[str, str]]]]] = MappingProxyType(
    {"go": _go, "node": _node, "python": _python, "spring": _spring}
)
