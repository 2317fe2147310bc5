"""The peers in `.peers/` of the checkout, which git ignores.

The versions of the peers are in requirements.txt and in the files for Maven.

A stamp beside each part records the texts from which the part was made, so that later calls start at once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = HERE.parent.parent
HOME: Final = CHECKOUT / ".peers"
#: What the servers write. Each run starts without it.
DATA: Final = HOME / "data"

_VENV: Final = HOME / "venv"
PYTHON: Final = _VENV / "bin" / "python"
#: The Python of mqdb and of this program.
OWN_PYTHON: Final = sys.executable

_REQUIREMENTS: Final = HERE / "requirements.txt"
_JAVA: Final = HERE / "rocketmq"


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java program of this project with the RocketMQ jars that it needs, separate from all other jars."""

    #: Of its folder in `.peers/`.
    name: str
    #: Names the jars.
    pom: str
    main_class: str

    @property
    def class_path(self) -> str:
        return f"{self._jars}/*{os.pathsep}{self._classes}"

    def install(self, announce: Callable[[str], None]) -> None:
        """Fetch the jars and compile the program. Raises NotInstalled."""
        pom = _JAVA / self.pom
        sources = (_JAVA / "PeersClient.java", _JAVA / f"{self.main_class}.java")
        if _is_made(self._classes, pom, *sources):
            return
        missing = [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]
        if missing:
            raise NotInstalled(f"RocketMQ needs {', '.join(missing)} on PATH; leave it out with --only")
        announce(f"fetching RocketMQ's jars by Maven into .peers/{self.name}, once")
        shutil.rmtree(HOME / self.name, ignore_errors=True)
        self._classes.mkdir(parents=True)
        copy = ("dependency:copy-dependencies", f"-DoutputDirectory={self._jars}")
        _run("mvn", "--batch-mode", "--quiet", "--file", str(pom), *copy)
        _run("javac", "-cp", f"{self._jars}/*", "-d", str(self._classes), *map(str, sources))
        _mark_made(self._classes, pom, *sources)

    @property
    def _jars(self) -> Path:
        return HOME / self.name / "lib"

    @property
    def _classes(self) -> Path:
        return HOME / self.name / "classes"


#: The client for remoting; its jars are those of the name server and the broker, too.
ROCKETMQ: Final = JavaProgram("rocketmq", "pom.xml", "RocketMQClient")
#: The client for gRPC.
ROCKETMQ_SDK: Final = JavaProgram("rocketmq-sdk", "sdk.xml", "RocketMQ5Client")
#: A broker with a proxy for gRPC; the client makes its topics and groups.
ROCKETMQ_PROXY: Final = JavaProgram("rocketmq-proxy", "proxy.xml", "RocketMQClient")


class NotInstalled(Exception):
    """A peer cannot be installed; the message says what is missing."""


def checkout_environment() -> dict[str, str]:
    """The environment for a Python that must import this checkout rather than an installed mqdb."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "client")))}


def python_peers(announce: Callable[[str], None]) -> None:
    """The virtual environment of all Python clients except mqdb's."""
    if _is_made(_VENV, _REQUIREMENTS):
        return
    announce("installing the peers' Python packages into .peers/venv, once")
    shutil.rmtree(_VENV, ignore_errors=True)
    HOME.mkdir(exist_ok=True)
    uv = shutil.which("uv")
    if uv:
        _run(uv, "--quiet", "venv", "--python", sys.executable, str(_VENV))
        _run(uv, "--quiet", "pip", "install", "--python", str(PYTHON), "-r", str(_REQUIREMENTS))
    else:
        _run(sys.executable, "-m", "venv", str(_VENV))
        _run(str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "-r", str(_REQUIREMENTS))
    _mark_made(_VENV, _REQUIREMENTS)


def packaged(pattern: str) -> str:
    """The text of a file in the peers' Python packages."""
    found = sorted(_VENV.glob(f"lib/python*/site-packages/{pattern}"))
    if not found:
        raise NotInstalled(f"the peers' packages hold no {pattern}; remove .peers and try again")
    return found[0].read_text()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()[-2_000:]
        raise NotInstalled(f"{' '.join(command[:4])} ... failed:\n{output}")


def _content(*files: Path) -> str:
    texts = (sys.version.encode(), *(file.read_bytes() for file in files))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _is_made(folder: Path, *files: Path) -> bool:
    stamp = folder / "peers.stamp"
    return stamp.exists() and stamp.read_text() == _content(*files)


def _mark_made(folder: Path, *files: Path) -> None:
    (folder / "peers.stamp").write_text(_content(*files))
